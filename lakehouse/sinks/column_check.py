"""Whether a target can hold the columns of a table: `lakehouse validate` asks it, and a follower where columns change."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakehouse.declare.targets import Target
from lakehouse.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa


def check(table: str, target: Target, columns: "pa.Schema") -> None:
    """Raises SinkError for a key that the table does not have, and for columns that the target cannot hold.

    :param columns: those of the rows that are published, without technical ones.
    """
    where = f"target={target.name}, table={table}"
    if unknown := [name for name in target.key if name not in columns.names]:
        raise SinkError(
            f"{where}, key={unknown[0]!r}: {table} has no such column; name one of {', '.join(columns.names)}"
        )
    for column in columns:
        for place, key in _keys_of_maps(column.name, column.type):
            raise SinkError(
                f"{where}, column={place}: a key of a map becomes the name of a field, so it is one value, and these are {key}; "
                "publish an array of structs, as map_entries makes it, or leave the column out"
            )
    target.check(table, columns)


def _keys_of_maps(place: str, of: "pa.DataType") -> "Iterator[tuple[str, pa.DataType]]":
    """The maps in a column whose keys are nested: where each is, and the type of its keys."""
    import pyarrow as pa

    if pa.types.is_map(of):
        if pa.types.is_nested(of.key_type):
            yield place, of.key_type
        yield from _keys_of_maps(f"{place}.value", of.item_type)
    elif pa.types.is_struct(of):
        for each in of:
            yield from _keys_of_maps(f"{place}.{each.name}", each.type)
    elif pa.types.is_list(of) or pa.types.is_large_list(of):
        yield from _keys_of_maps(place, of.value_type)
