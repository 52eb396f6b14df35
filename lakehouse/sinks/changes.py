"""The rows that a version of a table adds, changes and removes, and the decision to send them: pure functions.

Every kind of table is one case: the rows of the files that a commit removes went, those of the files that it adds came,
and rows in both have only moved.
"""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.declare.columns import ARRIVAL, PLACE
from lakehouse.declare.targets import Change, Corrections
from lakehouse.sinks.formats.encoded import Columns

_PLACE = ("topic", "partition", "offset", PLACE)  # of a row, in `_arrival`


def difference(went: pa.Table, came: pa.Table, key: Sequence[str]) -> Columns:
    """Returns the changes from the rows that went to those that came: deletions first, the rest in the order of `came`.

    A key that is there before and after is updated by its new row alone.
    """
    inserted = Columns(["insert"] * came.num_rows, came)
    if not went.num_rows:  # most versions only append
        return inserted
    deleted = Columns(["delete"] * went.num_rows, went)
    before = {row_key: place for place, row_key in enumerate(deleted.keys(key))}
    after = inserted.keys(key)
    kept_keys = set(after)
    places = [place for row_key, place in before.items() if row_key not in kept_keys]
    kinds: list[Change] = ["delete"] * len(places)
    unmoved = Counter(deleted.values())
    rows = zip(after, inserted.values(), strict=True)
    for place, (row_key, value) in enumerate(rows, len(deleted)):
        if unmoved[value]:
            unmoved[value] -= 1
        else:
            places.append(place)
            kinds.append("update" if row_key in before else "insert")
    return Columns(kinds, pa.concat_tables([went, came]).take(pa.array(places, pa.int64())))


def disposal(policy: Corrections, *, has_partitions: bool, by_stream: bool) -> Corrections:
    """Returns the way in which the changes of a version are treated.

    The policy is for final rows: those of a table with partitions that the stream did not write.
    """
    return policy if has_partitions and not by_stream else "send"


def ordered(rows: pa.Table) -> pa.Table:
    """Returns the rows in the order of their topics, as far as they carry that; else as the files have them."""
    if ARRIVAL not in rows.column_names:
        return rows
    arrival = rows[ARRIVAL]
    names = [name for name in _PLACE if arrival.type.get_field_index(name) >= 0]
    places = pa.table({name: pc.struct_field(arrival, name) for name in names})
    order = pc.sort_indices(places, sort_keys=[(name, "ascending") for name in names])
    return rows.drop_columns(ARRIVAL).take(order)
