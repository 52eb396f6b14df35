"""Tables of PostgreSQL as targets: each version of a table is one transaction, and its position is in it.

The position is a row of `lakehouse_positions` beside the tables. A follower that starts takes that
row over with a higher epoch; a transaction of the one before, which knows the former epoch, is
refused as it commits.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lakehouse.declare.inputs.source_checks import one_of
from lakehouse.declare.targets import (
    Corrections,
    Position,
    RowChange,
    Sink,
    Target,
    columns_of,
)
from lakehouse.errors import DeclarationError, SinkAway, SinkError
from lakehouse.settings import Settings
from lakehouse.sinks.formats import encoded
from lakehouse.sinks.formats.encoded import Changes
from lakehouse.sinks.formats.encoding import key_of, value_of
from lakehouse.sinks.targets.postgres_copy import content
from lakehouse.sinks.targets.postgres_sql import RULE, joined, key_part, sql, too_long, type_of

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg import Connection
    from psycopg.sql import Composed, Identifier

_POSITIONS = "lakehouse_positions"
# seconds after which the server ends a transaction of a process that does not go on, whose locks others wait for
_IDLE = 60
_LOCKED = 30  # seconds for a lock that others hold
# seconds to connect, and for the connection to a server that the network has lost to end
_CONNECT = {
    "connect_timeout": 30,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # milliseconds
}


@dataclass(frozen=True, slots=True)
class PostgresTable(Target):
    """A table of PostgreSQL that holds, for each key, the row of a table."""

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
    one_of("corrections", corrections, ("send", "hold", "ignore"))
    keys = columns_of(key)
    parts = into.split(".")
    if not keys or not all(parts) or len(parts) > 2:
        raise DeclarationError(
            f"into={into!r}, key={list(keys)}: a table, or schema.table, and at least one column that identifies a row"
        )
    if cut := too_long(parts):
        raise DeclarationError(
            f"into={cut}: {RULE}, so that two tables may be one; name it shorter"
        )
    return PostgresTable(name or into, keys, corrections, into, dsn)


def _columns_of(noted: str | None) -> list[str]:
    """The columns that are filled; none if that was not noted, as by earlier versions of the library."""
    with suppress(ValueError, AttributeError):
        return json.loads(noted or "{}").get("columns", [])
    return []


class PostgresSink(Sink):
    """Writes a table to PostgreSQL."""

    def __init__(self, target: PostgresTable) -> None:
        self._target = target
        self._db: Connection | None = None
        self._epoch = 0
        self._types: dict[str, str] = {}
        self._columns: list[str] = []  # that are filled; others may have added more

    def open(self) -> None:
        with self._failing("taking it over"):
            # two that start at once would both make it
            self._run("SELECT pg_advisory_xact_lock(hashtext(%s))", [_POSITIONS])
            self._run(
                f"CREATE TABLE IF NOT EXISTS {_POSITIONS} (target text PRIMARY KEY, epoch bigint NOT NULL, position text)"
            )
            taken = self._run(
                f"INSERT INTO {_POSITIONS} AS p VALUES (%s, 1, NULL) ON CONFLICT (target) DO UPDATE SET epoch = p.epoch + 1 "
                "RETURNING epoch",
                [self._target.name],
            )
            self._epoch = taken[0][0]
            self._connection.commit()

    def position(self) -> Position | None:
        with self._failing("reading its position"):
            found = self._noted()
            fault = self._fault(found is not None)
            self._connection.rollback()
        if fault:
            raise SinkError(
                f"target={self._target.name}: {fault}; `lakehouse reconcile sink {self._target.name} --repair` makes it equal to "
                "the newest version"
            )
        if found is None:
            return None
        try:
            self._columns = _columns_of(found)
            return Position.from_json(found)
        except ValueError as err:
            raise SinkError(
                f"target={self._target.name}: its row in {_POSITIONS} holds something else than a position ({err}); "
                f"`lakehouse reconcile sink {self._target.name} --repair` writes a new one"
            ) from err

    def columns(self, schema: "pa.Schema") -> None:
        self._types = types = {field.name: type_of(field.type) for field in schema}
        self._columns = list(types)
        with self._failing("making its table"):
            there = self._there()
            if not there:
                self._make()
            for name, of in types.items() if there else ():
                if name not in there:
                    self._run(sql("ALTER TABLE {} ADD COLUMN {} " + of, self._table, name))
                elif there[name] != of:
                    raise SinkError(
                        f"target={self._target.name}, column={name}: it is {there[name]} in {self._target.into}, and its values "
                        f"are {of}; change the column, or publish to another table"
                    )

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        found = encoded.of(changes)
        # of a key the last one counts
        last = {key: place for place, key in enumerate(found.keys(self._target.key))}
        places: dict[bool, list[int]] = {True: [], False: []}
        kinds = found.kinds
        for place in sorted(last.values()):
            places[kinds[place] == "delete"].append(place)
        with self._failing(f"writing version {version}"):
            self._delete(found.take(places[True]))
            self._upsert(found.take(places[False]))

    def commit(self, position: Position) -> None:
        noted = json.dumps(asdict(position) | {"columns": self._columns})
        with self._failing(f"committing version {position.version}"):
            done = self._run(
                f"UPDATE {_POSITIONS} SET position = %s WHERE target = %s AND epoch = %s RETURNING epoch",
                [noted, self._target.name, self._epoch],
            )
            if not done:
                self._connection.rollback()
                raise SinkError(
                    f"target={self._target.name}: another process has taken it over; one process writes a target, so this one "
                    "ends, and nothing of its transaction is visible"
                )
            self._connection.commit()

    def rows(self, version: int) -> Iterator[tuple[str, str, bool]]:
        with self._failing("reading it"):
            filled = _columns_of(self._noted())
            columns = [name for name in self._there() if not filled or name in filled]
            found = self._run(sql("SELECT {} FROM {}", columns, self._table)) if columns else []
            self._connection.rollback()
        for values in found:
            row = dict(zip(columns, values, strict=True))
            yield key_of(row, self._target.key), value_of(row), True

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    @property
    def _connection(self) -> "Connection":
        """Made when it is needed first: a comparison reads without taking the target over."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        if self._db is None:
            given: dict[str, Any] = {**_CONNECT, **conninfo_to_dict(self._target.dsn)}
            self._db = psycopg.connect(**given | {"application_name": "lakehouse"})
            self._db.execute("SET TIME ZONE 'UTC'")
            self._db.execute(f"SET lock_timeout = '{_LOCKED}s'")
            self._db.execute(f"SET idle_in_transaction_session_timeout = '{_IDLE}s'")
            self._db.commit()
        return self._db

    @property
    def _table(self) -> "Identifier":
        from psycopg.sql import Identifier

        return Identifier(*self._target.into.split("."))

    def _run(self, query: Any, values: Sequence[object] = ()) -> list[tuple]:
        done = self._connection.execute(query, values or None)
        return done.fetchall() if done.description else []

    def _noted(self) -> str | None:
        """The position as it stands in the database, and beside it the names of the columns that are filled."""
        made = self._run("SELECT to_regclass(%s) IS NOT NULL", [_POSITIONS])[0][0]
        asked = f"SELECT position FROM {_POSITIONS} WHERE target = %s"
        noted = self._run(asked, [self._target.name]) if made else []
        return noted[0][0] if noted else None

    def _there(self) -> dict[str, str]:
        """The columns of the table, in their order, with their types; none if there is no such table."""
        return dict(
            self._run(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                [self._table.as_string(self._connection)],
            )
        )

    def _fault(self, has_position: bool) -> str:
        """That the table was dropped, or the position was and rows of earlier versions would stay; empty if all is well."""
        is_there = bool(self._there())
        if not is_there and has_position:
            return f"{self._target.into} is gone, and {_POSITIONS} says which version it held"
        has_rows = is_there and self._run(sql("SELECT EXISTS (SELECT FROM {})", self._table))[0][0]
        if has_rows and not has_position:
            return f"{self._target.into} has rows, and {_POSITIONS} does not say of which version they are"
        return ""

    def _make(self) -> None:
        """Makes the table. A primary key has no expressions, and the key of a window is one."""
        key = self._target.key
        columns = [sql("{} " + of, name) for name, of in self._types.items()]
        is_plain = all(self._types[name] != "json" for name in key)
        columns += [sql("PRIMARY KEY ({})", key)] if is_plain else []
        self._run(sql("CREATE TABLE {} ({})", self._table, columns))
        if not is_plain:
            needed = [sql("ALTER {} SET NOT NULL", name) for name in key]
            self._run(sql("ALTER TABLE {} {}", self._table, needed))
            self._run(sql("CREATE UNIQUE INDEX ON {} ({})", self._table, self._key()))

    def _key(self, table: str = "") -> "list[Composed]":
        return [key_part(name, self._types[name], table) for name in self._target.key]

    def _delete(self, rows: Changes) -> None:
        if not rows:
            return
        key = self._target.key
        self._copy("lakehouse_gone", key, rows)
        same = [
            sql("{} = {}", *parts) for parts in zip(self._key("t"), self._key("g"), strict=True)
        ]
        gone = sql("DELETE FROM {} t USING lakehouse_gone g WHERE ", self._table)
        self._run(gone + joined(" AND ", same))
        self._run("DROP TABLE lakehouse_gone")

    def _upsert(self, rows: Changes) -> None:
        if not rows:
            return
        key, names = self._target.key, list(self._types)
        self._copy("lakehouse_come", names, rows)
        others = [sql("{} = excluded.{}", name, name) for name in names if name not in key]
        then = sql("UPDATE SET {}", others) if others else sql("NOTHING")
        insert = sql(
            "INSERT INTO {} ({}) SELECT {} FROM lakehouse_come ", self._table, names, names
        )
        self._run(insert + sql("ON CONFLICT ({}) DO ", self._key()) + then)
        self._run("DROP TABLE lakehouse_come")

    def _copy(self, into: str, names: Sequence[str], rows: Changes) -> None:
        """Puts these columns of the rows into a table of this transaction alone."""
        made = sql(
            "CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} LIMIT 0",
            into,
            list(names),
            self._table,
        )
        self._run(made)
        copy = sql("COPY {} ({}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')", into, list(names))
        with self._connection.cursor() as cursor, cursor.copy(copy) as stream:
            for part in rows.parts():
                stream.write(content(self._target, part.cells(names), self._types))

    def _is_away(self, err: "psycopg.Error") -> bool:
        """Whether the connection could not be made, or is gone."""
        import psycopg

        gone = self._db is None or self._db.closed
        return gone and isinstance(err, psycopg.OperationalError | psycopg.InterfaceError)

    def _holders(self) -> str:
        """Who has locked what this target writes, as far as the database says so."""
        import psycopg

        held = (
            "SELECT DISTINCT pid, application_name, state, xact_start FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE granted AND pid <> pg_backend_pid() AND "
            "(locktype = 'advisory' OR relation IN (to_regclass(%s), to_regclass(%s)))"
        )
        found: list[tuple] = []
        with suppress(psycopg.Error):
            self._connection.rollback()
            found = self._run(held, [self._table.as_string(self._connection), _POSITIONS])
            self._connection.rollback()
        shown = [f"process {p} ({name}, {state}, since {since})" for p, name, state, since in found]
        return " and ".join(shown) or "another transaction"

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """Says what failed, and why. Nothing of the transaction stays."""
        import psycopg

        try:
            yield
        except psycopg.Error as err:
            said = " ".join(str(err).split())
            if self._db is None and is_refusal(said):
                raise SinkError(
                    f"target={self._target.name}, {doing}: the database refuses the connection ({said}); set user, password "
                    "and database in the follower's environment (PGUSER, PGPASSFILE, PGDATABASE) or by dsn=, and start it"
                ) from err
            if self._is_away(err):
                raise SinkAway(
                    f"target={self._target.name}, {doing}: the database must answer and did not ({said}); its follower asks "
                    "again, and goes on from the position"
                ) from err
            if isinstance(err, psycopg.errors.LockNotAvailable):
                raise SinkAway(
                    f"target={self._target.name}, {doing}: a lock must be free within {_LOCKED} s, and {self._holders()} "
                    "held it; end that transaction; its follower asks again, and goes on from the position"
                ) from err
            raise SinkError(
                f"target={self._target.name}, table={self._target.into}: {doing} failed, {said}; the next process goes on from "
                "the position"
            ) from err


# what a server, or libpq, says of a connection that will be refused each time: no code comes with it
_REFUSALS = (
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "does not exist",
    "is not permitted to log in",
    "permission denied",
)


def is_refusal(said: str) -> bool:
    """Whether a connection that failed would be refused again, rather than that the server is away.

    By the text in English. A server that says it in another language counts as away.
    """
    return any(each in said for each in _REFUSALS)
