"""Which rows a version of a table adds, changes and removes, and whether that is sent: decided without a process.

Every kind of table is one case: the rows of the files that a commit removes went, those of the
files that it adds came, and rows in both have only moved.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.declare.columns import ARRIVAL
from lakehouse.declare.targets import Corrections, Row, RowChange
from lakehouse.sinks.encoding import key_of, value_of

_PLACE = ("topic", "partition", "offset")  # of a message, in `_arrival`


def difference(went: Sequence[Row], came: Sequence[Row], key: Sequence[str]) -> list[RowChange]:
    """The changes from the rows that went to those that came: deletions first, the rest in the order of `came`.

    A key that is there before and after is updated by its new row alone.
    """
    if not went:  # most versions only append
        return [RowChange("insert", row) for row in came]
    before = {key_of(row, key): row for row in went}
    after = [key_of(row, key) for row in came]
    stays = set(after)
    changes = [RowChange("delete", row) for of, row in before.items() if of not in stays]
    unmoved = Counter(map(value_of, went))
    for of, row in zip(after, came, strict=True):
        if unmoved[value := value_of(row)]:
            unmoved[value] -= 1
        else:
            changes.append(RowChange("update" if of in before else "insert", row))
    return changes


def is_correction(by_stream: bool, has_partitions: bool) -> bool:
    """Whether a commit changes what was final: of a table with partitions, whatever the stream did not write."""
    return has_partitions and not by_stream


def disposal(correction: bool, policy: Corrections) -> Literal["send", "hold", "ignore"]:
    """What happens to the changes of a version."""
    return policy if correction else "send"


def ordered(rows: pa.Table) -> list[Row]:
    """The rows in the order in which their topics had them, as far as they carry that; else as the files have them."""
    if ARRIVAL not in rows.column_names:
        return rows.to_pylist()
    arrival = rows[ARRIVAL]
    places = pa.table({name: pc.struct_field(arrival, name) for name in _PLACE})
    order = pc.sort_indices(places, sort_keys=[(name, "ascending") for name in _PLACE])
    return rows.drop_columns(ARRIVAL).take(order).to_pylist()


def keys_of(changes: Iterable[RowChange], key: Sequence[str]) -> set[str]:
    return {key_of(change.row, key) for change in changes}
