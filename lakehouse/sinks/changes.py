"""Which rows a version of a table adds, changes and removes, and whether that is sent: decided without a process.

Every kind of table is one case: the rows of the files that a commit removes went, those of the
files that it adds came, and rows in both have only moved.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.declare.columns import ARRIVAL, PLACE
from lakehouse.declare.targets import Change, Corrections, RowChange
from lakehouse.sinks.formats.encoded import Columns
from lakehouse.sinks.formats.encoding import key_of

_PLACE = ("topic", "partition", "offset", PLACE)  # of a row, in `_arrival`


def difference(went: pa.Table, came: pa.Table, key: Sequence[str]) -> Columns:
    """The changes from the rows that went to those that came: deletions first, the rest in the order of `came`.

    A key that is there before and after is updated by its new row alone.
    """
    inserted = Columns(["insert"] * came.num_rows, came)
    if not went.num_rows:  # most versions only append
        return inserted
    gone = Columns(["delete"] * went.num_rows, went)
    before = {of: place for place, of in enumerate(gone.keys(key))}
    after = inserted.keys(key)
    stays = set(after)
    places = [place for of, place in before.items() if of not in stays]
    kinds: list[Change] = ["delete"] * len(places)
    unmoved = Counter(gone.values())
    for place, (of, value) in enumerate(zip(after, inserted.values(), strict=True), len(gone)):
        if unmoved[value]:
            unmoved[value] -= 1
        else:
            places.append(place)
            kinds.append("update" if of in before else "insert")
    return Columns(kinds, pa.concat_tables([went, came]).take(pa.array(places, pa.int64())))


def is_correction(by_stream: bool, has_partitions: bool) -> bool:
    """Whether a commit changes what was final: of a table with partitions, whatever the stream did not write."""
    return has_partitions and not by_stream


def disposal(correction: bool, policy: Corrections) -> Literal["send", "hold", "ignore"]:
    """What happens to the changes of a version."""
    return policy if correction else "send"


def ordered(rows: pa.Table) -> pa.Table:
    """The rows in the order in which their topics had them, as far as they carry that; else as the files have them."""
    if ARRIVAL not in rows.column_names:
        return rows
    arrival = rows[ARRIVAL]
    names = [name for name in _PLACE if arrival.type.get_field_index(name) >= 0]
    places = pa.table({name: pc.struct_field(arrival, name) for name in names})
    order = pc.sort_indices(places, sort_keys=[(name, "ascending") for name in names])
    return rows.drop_columns(ARRIVAL).take(order)


def keys_of(changes: Iterable[RowChange], key: Sequence[str]) -> set[str]:
    return {key_of(change.row, key) for change in changes}
