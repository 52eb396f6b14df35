"""The comparison of an ingest table with its sources, which commands ask for: its contract, its result, the table's offsets.

The offsets come from the tables' files, without Spark. Offsets that a source cannot deliver (markers of transactions,
compacted messages) are not missing: the source is read wherever an offset is not in the table.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from lakehouse.declare.columns import ARRIVAL, PLACE
from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage.delta.delta_log import open_table
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.session import Session
from lakehouse.stream.reading.contract import Reader
from lakehouse.stream.reading.offsets import Gap

if TYPE_CHECKING:
    import numpy as np

_SHOWN = 5
R = TypeVar("R", bound=Reader)


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


class SourceCheck(ABC, Generic[R]):
    """The questions of commands about one ingest table's sources, beside its stream. Its own reader reads nothing for a step."""

    def __init__(self, reader: R) -> None:
        self.reader, self.settings, self.table = reader, reader.settings, reader.table

    @abstractmethod
    def verify(self, last: Commit) -> Iterator[Checked]:
        """Compares the table with its sources up to this commit, partition by partition."""

    @abstractmethod
    def lost(self, last: Commit | None) -> list[Gap]:
        """Returns the offsets that were not read and that the sources no longer have."""

    def unreadable(self, session: Session) -> list[str]:
        """Returns why the newest records could not be read as the declared columns. Raises RegistryAway, SourceAway."""
        return []


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
    """Yields each partition that a commit has `read`, by number: the offset that it has read to, and the offsets of the table.

    Offsets are those of messages that are in the table and its quarantine with all rows. Only messages that arrived `since`
    count, if that is given.
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
            ours = pc.equal(batch["topic"], address)
            if since:
                ours = pc.and_(
                    ours, pc.greater_equal(batch["time"], pa.scalar(since).cast(batch["time"].type))
                )
            chosen = batch.filter(ours)
            for partition in pc.unique(chosen["partition"]).to_pylist():
                own = chosen.filter(pc.equal(chosen["partition"], partition))
                places = [own[name].to_numpy(zero_copy_only=False) for name in ("offset", PLACE)]
                parts.setdefault(partition, []).append(np.stack(places))
    for partition in sorted(read, key=int):
        places = parts.get(int(partition), [np.empty((2, 0), np.int64)])
        yield partition, read[partition], whole(np.concatenate(places, axis=1))


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
