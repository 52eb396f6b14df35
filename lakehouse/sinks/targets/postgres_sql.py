"""SQL of targets in PostgreSQL: names, types, and the key of a row."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lakehouse.sinks.formats.kinds import Kind, kind_of

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg.sql import Composed

_LONGEST = 63  # bytes of a name, which PostgreSQL cuts there without an error
RULE = (
    f"a name has at most {_LONGEST} bytes in UTF-8, and PostgreSQL cuts a longer one without a word"
)
_PLAIN: dict[Kind | None, str] = {
    "boolean": "boolean",
    "int64": "bigint",
    "integer": "bigint",
    "float32": "double precision",
    "floating": "double precision",
    "date": "date",
    "binary": "bytea",
    "list": "json",
    "map": "json",
    "struct": "json",
}


def too_long(names: Iterable[str]) -> str:
    """Returns the first name that PostgreSQL would cut, with its length; empty if there is none."""
    sizes = ((name, len(name.encode())) for name in names)
    return next((f"{name!r} ({size} bytes)" for name, size in sizes if size > _LONGEST), "")


def key_part(name: str, type_: str, table: str = "") -> "Composed":
    """Returns a column of a key as it is compared: JSON has no order, and its text has."""
    column = sql("{}.{}", table, name) if table else sql("{}", name)
    return sql("({}::text)", column) if type_ == "json" else column


def type_of(type_: "pa.DataType") -> str:
    """Returns the type of PostgreSQL for a type of Arrow; a nested one is JSON as `encoding` has it."""
    kind = kind_of(type_)
    if kind == "decimal":
        return f"numeric({type_.precision},{type_.scale})"
    if kind == "timestamp":
        return f"timestamp {'with' if type_.tz else 'without'} time zone"
    return _PLAIN.get(kind, "text")


def sql(text: str, *parts: Any) -> "Composed":
    """Returns SQL with names in its braces: one, or several with commas between; or parts that are SQL already."""
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
