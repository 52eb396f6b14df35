"""The kinds of Arrow's types, by which each format chooses its own."""

from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal[
    "boolean", "int64", "integer", "float32", "floating", "decimal", "timestamp", "date", "binary",
    "string", "list", "map", "struct",
]  # fmt: skip


@cache
def kind_of(type: "pa.DataType") -> Kind | None:
    """Returns the first kind that fits, whatever the width of its offsets; None for a type that no table has."""
    from pyarrow import types

    for kind in get_args(Kind):
        fits = getattr(types, f"is_{kind}")
        large = getattr(types, f"is_large_{kind}", fits)
        if fits(type) or large(type):
            return kind
    return None
