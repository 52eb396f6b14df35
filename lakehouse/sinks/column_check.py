"""The check that a target can hold the columns of a table, for `lakehouse validate`, and for a follower where columns change."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakehouse.declare.targets import Target
from lakehouse.errors import SinkError
from lakehouse.sinks.formats.kinds import kind_of

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
        for place, key in _nested_keys(column.name, column.type):
            raise SinkError(
                f"{where}, column={place}: a key of a map becomes the name of a field, so it is one value, and these are {key}; "
                "publish an array of structs, as map_entries makes it, or leave the column out"
            )
    target.check(table, columns)


def _nested_keys(place: str, type_: "pa.DataType") -> "Iterator[tuple[str, pa.DataType]]":
    """Yields the maps in a column whose keys are nested: the place and the type of its keys."""
    kind = kind_of(type_)
    if kind == "map":
        if kind_of(type_.key_type) in ("struct", "list", "map"):
            yield place, type_.key_type
        yield from _nested_keys(f"{place}.value", type_.item_type)
    elif kind == "struct":
        for field in type_:
            yield from _nested_keys(f"{place}.{field.name}", field.type)
    elif kind == "list":
        yield from _nested_keys(place, type_.value_type)
