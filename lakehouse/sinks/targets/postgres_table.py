"""The table of a target in PostgreSQL, with the columns of the published one and its key: its SQL, and its rows.

Rows come as COPY reads them: CSV, in which what is null has no quotation marks, and all else has.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import WriteOptions, write_csv

from lakehouse.declare.targets import Target
from lakehouse.errors import SinkError
from lakehouse.sinks.formats.encoded import Changes
from lakehouse.sinks.formats.kinds import Kind, kind_of
from lakehouse.sinks.targets.postgres_database import Database

if TYPE_CHECKING:
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


class TargetTable:
    """The table, which may not be there yet."""

    def __init__(self, target: Target, into: str, db: Database) -> None:
        self._target, self._into, self._db = target, into, db
        self._types: dict[str, str] = {}

    def columns(self) -> dict[str, str]:
        """Returns the columns of the table, in their order, with their types; none if there is no such table."""
        return dict(
            self._db.run(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                [self._db.table.as_string(self._db.connection)],
            )
        )

    def has_rows(self) -> bool:
        return self._db.run(sql("SELECT EXISTS (SELECT FROM {})", self._db.table))[0][0]

    def fit(self, schema: pa.Schema) -> list[str]:
        """Makes the table, or adds the columns that it lacks, and returns their names.

        Raises SinkError for a column of another type.
        """
        self._types = {field.name: type_of(field.type) for field in schema}
        existing = self.columns()
        if not existing:
            self._make()
        for name, type_ in self._types.items() if existing else ():
            if name not in existing:
                self._db.run(sql("ALTER TABLE {} ADD COLUMN {} " + type_, self._db.table, name))
            elif existing[name] != type_:
                raise SinkError(
                    f"target={self._target.name}, column={name}: it is {existing[name]} in {self._into}, and its values are "
                    f"{type_}; change the column, or publish to another table"
                )
        return list(self._types)

    def delete(self, rows: Changes) -> None:
        if not rows:
            return
        key = self._target.key
        self._copy("lakehouse_gone", key, rows)
        same = [
            sql("{} = {}", *parts) for parts in zip(self._key("t"), self._key("g"), strict=True)
        ]
        gone = sql("DELETE FROM {} t USING lakehouse_gone g WHERE ", self._db.table)
        self._db.run(gone + joined(" AND ", same))
        self._db.run("DROP TABLE lakehouse_gone")

    def upsert(self, rows: Changes) -> None:
        if not rows:
            return
        key, names = self._target.key, list(self._types)
        self._copy("lakehouse_come", names, rows)
        others = [sql("{} = excluded.{}", name, name) for name in names if name not in key]
        then = sql("UPDATE SET {}", others) if others else sql("NOTHING")
        insert = sql(
            "INSERT INTO {} ({}) SELECT {} FROM lakehouse_come ", self._db.table, names, names
        )
        self._db.run(insert + sql("ON CONFLICT ({}) DO ", self._key()) + then)
        self._db.run("DROP TABLE lakehouse_come")

    def _make(self) -> None:
        """Makes the table. A primary key has no expressions, and the key of a window is one."""
        key = self._target.key
        columns = [sql("{} " + type_, name) for name, type_ in self._types.items()]
        is_plain = all(self._types[name] != "json" for name in key)
        columns += [sql("PRIMARY KEY ({})", key)] if is_plain else []
        self._db.run(sql("CREATE TABLE {} ({})", self._db.table, columns))
        if not is_plain:
            needed = [sql("ALTER {} SET NOT NULL", name) for name in key]
            self._db.run(sql("ALTER TABLE {} {}", self._db.table, needed))
            self._db.run(sql("CREATE UNIQUE INDEX ON {} ({})", self._db.table, self._key()))

    def _key(self, table: str = "") -> "list[Composed]":
        return [key_part(name, self._types[name], table) for name in self._target.key]

    def _copy(self, into: str, names: Sequence[str], rows: Changes) -> None:
        """Puts these columns of the rows into a temporary table of this transaction."""
        made = sql(
            "CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} LIMIT 0",
            into,
            list(names),
            self._db.table,
        )
        self._db.run(made)
        copy = sql("COPY {} ({}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')", into, list(names))
        with self._db.connection.cursor() as cursor, cursor.copy(copy) as stream:
            for part in rows.parts():
                stream.write(content(self._target, part.cells(names), self._types))


def content(target: Target, cells: pa.Table, types: Mapping[str, str]) -> bytes:
    """Returns these cells for COPY; `types` are those of their columns, as PostgreSQL names them.

    Raises SinkError for a key that is null and for a text that PostgreSQL cannot hold.
    """
    if null := [name for name in target.key if cells[name].null_count]:
        raise SinkError(
            f"target={target.name}, key={null[0]}: a row in which it is null has no key; leave it out, or choose other columns"
        )
    for place, name in enumerate(cells.column_names):
        if types[name] == "text":
            _check_texts(target, cells, name)
        elif types[name] == "bytea":
            cells = cells.set_column(place, name, [[*map(_hex, cells[name].to_pylist())]])
    sink = pa.BufferOutputStream()
    write_csv(cells, sink, WriteOptions(include_header=False, quoting_style="all_valid"))
    return sink.getvalue().to_pybytes()


def _check_texts(target: Target, cells: pa.Table, name: str) -> None:
    has_nul = pc.match_substring(cells[name], "\0")
    if pc.any(has_nul).as_py():
        [first, *_] = cells.filter(has_nul.fill_null(False)).to_pylist()
        key = ", ".join(f"{column}={first[column]!r}" for column in target.key)
        raise SinkError(
            f"target={target.name}, column={name}, {key}: PostgreSQL holds no text with NUL (\\u0000); replace it in the function"
        )


def _hex(text: str | None) -> str | None:
    """Returns bytes as PostgreSQL reads them, from their text in `encoding`."""
    return None if text is None else f"\\x{base64.b64decode(text).hex()}"
