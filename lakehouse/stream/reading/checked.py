"""The result of a comparison of an ingest table with its sources, and the offsets that the table has.

The offsets come from the tables' files, without Spark. Offsets that a source cannot deliver (markers of transactions,
compacted messages) are not missing: the source is read wherever an offset is not in the table.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.declare.columns import ARRIVAL, PLACE
from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage.delta.delta_log import open_table
from lakehouse.storage.disk.layout import table_path

if TYPE_CHECKING:
    import numpy as np

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Checked:
    """One partition of a source: offsets `start` to `end` (exclusive), which a topic still has and the table has read."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int  # of these, in the table and its quarantine
    missing: int
    doubled: int
    passed_over: int  # tombstones and messages among the changes of a database
    # the first offsets missing or doubled; for a folder, also files that are not read as they are; for changes of a database,
    # with its last partition, the remark that its table was read again
    examples: str


def compared(
    source: tuple[str, int, int, int],
    own: "np.ndarray",
    there: "np.ndarray",
    shown: Callable[[int], str] = str,
    more: Iterable[str] = (),
) -> Checked:
    """Compares the offsets that a table has of a partition with those that are there.

    `source`: address, partition, start and end; `more`: further remarks.
    """
    import numpy as np

    _, _, start, end = source
    once, counts = np.unique(own[(own >= start) & (own < end)], return_counts=True)
    missing, doubled = np.setdiff1d(there, once, assume_unique=True), once[counts > 1]
    said = "; ".join([*examples(missing, doubled, shown), *more])
    return Checked(*source, int(counts.sum()), len(missing), len(doubled), 0, said)


def examples(
    missing: "Sequence[int] | np.ndarray", doubled: "np.ndarray", shown: Callable[[int], str]
) -> list[str]:
    return [
        f"{name} {', '.join(shown(int(offset)) for offset in which[:_SHOWN])}"
        for name, which in (("missing", missing), ("doubled", doubled))
        if len(which)
    ]


def partitions_of(
    settings: Settings, table: Table, address: str, read: Mapping[str, int], since: str = ""
) -> Iterator[tuple[str, int, "np.ndarray"]]:
    """Yields each partition that a commit has `read`, by number: the offset that it has read to, and the offsets of the table."""
    import numpy as np

    rows = stored(settings, table, address, since)
    for partition in sorted(read, key=int):
        yield partition, read[partition], rows.get(int(partition), np.empty(0, np.int64))


def stored(
    settings: Settings, table: Table, topic: str, since: str = ""
) -> dict[int, "np.ndarray"]:
    """Returns, by partition, the topic's offsets in the table and its quarantine: those of messages that are there with all rows.

    Only messages that arrived `since` count, if that is given.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    parts: dict[int, list[np.ndarray]] = {}
    for side in ("", "quarantine"):
        rows = open_table(table_path(settings, table, side)).to_pyarrow_dataset()
        has_place = rows.schema.field(ARRIVAL).type.get_field_index(PLACE) >= 0
        place = pc.field("_arrival", PLACE) if has_place else pc.scalar(0)
        columns = {
            name: pc.field("_arrival", name) for name in ("topic", "partition", "offset", "time")
        }
        columns[PLACE] = place
        for batch in rows.to_batches(columns=columns):
            ours = pc.equal(batch["topic"], topic)
            if since:
                ours = pc.and_(
                    ours, pc.greater_equal(batch["time"], pa.scalar(since).cast(batch["time"].type))
                )
            chosen = batch.filter(ours)
            for partition in pc.unique(chosen["partition"]).to_pylist():
                own = chosen.filter(pc.equal(chosen["partition"], partition))
                places = [own[name].to_numpy(zero_copy_only=False) for name in ("offset", PLACE)]
                parts.setdefault(partition, []).append(np.stack(places))
    return {partition: whole(np.concatenate(each, axis=1)) for partition, each in parts.items()}


def whole(places: "np.ndarray") -> "np.ndarray":
    """Returns the offsets (first line) of rows at places (second line), without messages that lack a row before their last."""
    import numpy as np

    offsets, in_message = places
    if not in_message.any():
        return offsets
    once, counts = np.unique(places, axis=1, return_counts=True)
    of_message, first, rows = np.unique(once[0], return_index=True, return_counts=True)
    last = once[1][first + rows - 1]
    times = np.maximum.reduceat(counts, first)
    return np.repeat(of_message, np.where(last + 1 == rows, times, 0))
