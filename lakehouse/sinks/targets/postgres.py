"""Tables of PostgreSQL as targets: each version of a table is one transaction, and its position is in it.

The position is a row of `lakehouse_positions` beside the tables. A follower that starts takes that
row over with a higher epoch; a transaction of the one before, which knows the former epoch, is
refused as it commits.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar

from lakehouse.declare.targets import Corrections, Position, RowChange, Sink, Target, columns_of
from lakehouse.errors import DeclarationError, SinkError
from lakehouse.settings import Settings
from lakehouse.sinks import base
from lakehouse.sinks.formats import encoded
from lakehouse.sinks.formats.encoding import key_of, value_of
from lakehouse.sinks.targets.postgres_database import POSITIONS, Database
from lakehouse.sinks.targets.postgres_table import RULE, TargetTable, sql, too_long

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class PostgresTable(Target):
    """A table of PostgreSQL that holds, for each key, the row of a table."""

    symbol: ClassVar[str] = "postgres"
    into: str
    dsn: str = field(repr=False)

    @property
    def place(self) -> str:
        return f"postgres {self.dsn} {self.into}\n"

    def check(self, table: str, columns: "pa.Schema") -> None:
        if cut := too_long(columns.names):
            raise SinkError(
                f"target={self.name}, table={table}, column={cut}: {RULE}; rename the column"
            )

    def sink(self, settings: Settings, table: str) -> "PostgresSink":
        return PostgresSink(self)


def postgres(
    into: str,
    *,
    key: str | Sequence[str],
    name: str = "",
    dsn: str = "",
    corrections: Corrections = "send",
) -> PostgresTable:
    """A table of PostgreSQL to which a table is published: `publish=[postgres(...)]`.

        @keyed_table(layer="gold", keys=["account"], publish=[postgres("balances", key="account")])
        def balances(payment_events: DataFrame) -> DataFrame: ...

    Each version of the table is one transaction. The table is created with the columns of the
    published one and `key` as its primary key, unless it is there; columns that it lacks are added.

    :param into: the table, with its schema if it is not in the search path: `bank.balances`.
    :param key: the columns that identify a row; none of them may be null.
    :param name: names the target in commands. Default: `into`.
    :param dsn: how to connect, as libpq has it. Default: by the environment (`PGHOST`, `PGDATABASE`,
        `PGUSER`, `PGPASSFILE`, `PGSERVICE`), where passwords belong.
    :param corrections: "send", "hold" or "ignore" what changes rows that were final before.
    :raises DeclarationError: for values that cannot be used.
    """
    parts = into.split(".")
    if not all(parts) or len(parts) > 2:
        raise DeclarationError(f"into={into!r}: a table, or schema.table; write one of them")
    if cut := too_long(parts):
        raise DeclarationError(
            f"into={cut}: {RULE}, so that two tables may be one; name it shorter"
        )
    return PostgresTable(name or into, columns_of(key), corrections, into, dsn)


def _columns_of(text: str | None) -> list[str]:
    """Returns the columns that are filled; none if they were not noted, as by earlier versions of the library."""
    with suppress(ValueError, AttributeError):
        return json.loads(text or "{}").get("columns", [])
    return []


class PostgresSink(Sink):
    """Writes a table to PostgreSQL."""

    def __init__(self, target: PostgresTable) -> None:
        self._target = target
        self._db = Database(target.name, target.dsn, target.into)
        self._table = TargetTable(target, target.into, self._db)
        self._epoch = 0
        self._columns: list[str] = []  # that are filled; others may have added more

    def open(self) -> None:
        with self._db.failing("taking it over"):
            # two that start at once would both make it
            self._db.run("SELECT pg_advisory_xact_lock(hashtext(%s))", [POSITIONS])
            self._db.run(
                f"CREATE TABLE IF NOT EXISTS {POSITIONS} (target text PRIMARY KEY, epoch bigint NOT NULL, position text)"
            )
            claimed = self._db.run(
                f"INSERT INTO {POSITIONS} AS p VALUES (%s, 1, NULL) ON CONFLICT (target) DO UPDATE SET epoch = p.epoch + 1 "
                "RETURNING epoch",
                [self._target.name],
            )
            self._epoch = claimed[0][0]
            self._db.connection.commit()

    def position(self) -> Position | None:
        with self._db.failing("reading its position"):
            text = self._stored_position()
            fault = self._fault(text is not None)
            self._db.connection.rollback()
        if fault:
            raise base.unsound(self._target.name, fault)
        self._columns = _columns_of(text)
        return base.position_of(self._target.name, f"its row in {POSITIONS}", text)

    def columns(self, schema: "pa.Schema") -> None:
        with self._db.failing("making its table"):
            self._columns = self._table.fit(schema)

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        encoded_changes = encoded.of(changes)
        # of a key the last one counts
        last = {key: place for place, key in enumerate(encoded_changes.keys(self._target.key))}
        places: dict[bool, list[int]] = {True: [], False: []}
        kinds = encoded_changes.kinds
        for place in sorted(last.values()):
            places[kinds[place] == "delete"].append(place)
        with self._db.failing(f"writing version {version}"):
            self._table.delete(encoded_changes.take(places[True]))
            self._table.upsert(encoded_changes.take(places[False]))

    def commit(self, position: Position) -> None:
        text = json.dumps(asdict(position) | {"columns": self._columns})
        with self._db.failing(f"committing version {position.version}"):
            done = self._db.run(
                f"UPDATE {POSITIONS} SET position = %s WHERE target = %s AND epoch = %s RETURNING epoch",
                [text, self._target.name, self._epoch],
            )
            if not done:
                self._db.connection.rollback()
                raise base.replaced(f"target={self._target.name}")
            self._db.connection.commit()

    def rows(self, version: int) -> Iterator[tuple[str, str, bool]]:
        with self._db.failing("reading it"):
            filled = _columns_of(self._stored_position())
            columns = [name for name in self._table.columns() if not filled or name in filled]
            rows = (
                self._db.run(sql("SELECT {} FROM {}", columns, self._db.table)) if columns else []
            )
            self._db.connection.rollback()
        for values in rows:
            row = dict(zip(columns, values, strict=True))
            yield key_of(row, self._target.key), value_of(row), True

    def close(self) -> None:
        self._db.close()

    def _stored_position(self) -> str | None:
        """Returns the position as it stands in the database, with the names of the columns that are filled."""
        made = self._db.run("SELECT to_regclass(%s) IS NOT NULL", [POSITIONS])[0][0]
        asked = f"SELECT position FROM {POSITIONS} WHERE target = %s"
        rows = self._db.run(asked, [self._target.name]) if made else []
        return rows[0][0] if rows else None

    def _fault(self, has_position: bool) -> str:
        """Returns a text if the table was dropped, or the position was, so that earlier rows would stay; empty if all is well."""
        is_there = bool(self._table.columns())
        if not is_there and has_position:
            return f"{self._target.into} is gone, and {POSITIONS} says which version it held"
        if is_there and not has_position and self._table.has_rows():
            return f"{self._target.into} has rows, and {POSITIONS} does not say of which version they are"
        return ""
