"""SQL of targets in PostgreSQL: names, types, and the key of a row."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg.sql import Composed

_LONGEST = 63  # bytes of a name, which PostgreSQL cuts there without an error


def too_long(names: Iterable[str]) -> str:
    """The first name that PostgreSQL would cut, with its length; empty if there is none."""
    sizes = ((name, len(name.encode())) for name in names)
    return next((f"{name!r} ({size} bytes)" for name, size in sizes if size > _LONGEST), "")


RULE = (
    f"a name has at most {_LONGEST} bytes in UTF-8, and PostgreSQL cuts a longer one without a word"
)


def key_part(name: str, of: str, table: str = "") -> "Composed":
    """A column of a key as it is compared, `of` that type: JSON has no order, and its text has."""
    whole = sql("{}.{}" if table else "{}", *filter(None, (table, name)))
    return sql("({}::text)", whole) if of == "json" else whole


def type_of(of: "pa.DataType") -> str:
    """The type of PostgreSQL for values of that type; a nested one is JSON as `encoding` has it."""
    import pyarrow as pa

    if pa.types.is_decimal(of):
        return f"numeric({of.precision},{of.scale})"
    if pa.types.is_timestamp(of):
        return f"timestamp {'with' if of.tz else 'without'} time zone"
    kinds = {
        "boolean": pa.types.is_boolean,
        "bigint": pa.types.is_integer,
        "double precision": pa.types.is_floating,
        "date": pa.types.is_date,
        "bytea": lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
        "json": pa.types.is_nested,
    }
    return next((name for name, fits in kinds.items() if fits(of)), "text")


def sql(text: str, *parts: Any) -> "Composed":
    """SQL with names in its braces: one, or several with commas between; or what is SQL already."""
    from psycopg.sql import SQL, Composable, Identifier

    def part(given: Any) -> Composable:
        if isinstance(given, Composable):
            return given
        if isinstance(given, str):
            return Identifier(given)
        return SQL(", ").join(map(part, given))

    return SQL(text).format(*map(part, parts))


def joined(by: str, parts: Sequence["Composed"]) -> "Composed":
    from psycopg.sql import SQL

    return SQL(by).join(parts)
