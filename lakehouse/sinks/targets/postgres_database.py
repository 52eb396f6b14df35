"""The connection of a target to PostgreSQL, and what its errors mean."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from lakehouse.errors import SinkError
from lakehouse.sinks import base

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Identifier

POSITIONS = "lakehouse_positions"
_ACCESS = "set user, password and database in the follower's environment (PGUSER, PGPASSFILE, PGDATABASE) or dsn=, and start it"
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


class Database:
    """A connection, made when it is needed first: a comparison reads without taking the target over.

    `into`: the table that the target writes.
    """

    def __init__(self, target: str, dsn: str, into: str) -> None:
        self._named, self._dsn, self._into = f"target={target}", dsn, into
        self._made: psycopg.Connection | None = None

    @property
    def table(self) -> "Identifier":
        from psycopg.sql import Identifier

        return Identifier(*self._into.split("."))

    @property
    def connection(self) -> "psycopg.Connection":
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        if self._made is None:
            given: dict[str, Any] = {**_CONNECT, **conninfo_to_dict(self._dsn)}
            self._made = psycopg.connect(**given | {"application_name": "lakehouse"})
            self._made.execute("SET TIME ZONE 'UTC'")
            self._made.execute(f"SET lock_timeout = '{_LOCKED}s'")
            self._made.execute(f"SET idle_in_transaction_session_timeout = '{_IDLE}s'")
            self._made.commit()
        return self._made

    def run(self, query: Any, values: Sequence[object] = ()) -> list[tuple]:
        """Returns the rows of a statement."""
        done = self.connection.execute(query, values or None)
        return done.fetchall() if done.description else []

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def failing(self, doing: str) -> AbstractContextManager[None]:
        """Raises what an error of the database means. Nothing of the transaction stays."""
        import psycopg

        return base.translated(psycopg.Error, partial(self._error, doing))

    def _error(self, doing: str, err: "psycopg.Error") -> SinkError:
        import psycopg

        text = " ".join(str(err).split())
        where = f"{self._named}, table={self._into}, {doing}"
        if self._made is None and is_refusal(text):
            return base.failure(where, "refused", text, _ACCESS)
        is_gone = self._made is None or self._made.closed
        if is_gone and isinstance(err, psycopg.OperationalError | psycopg.InterfaceError):
            return base.failure(where, "away", text)
        if isinstance(err, psycopg.errors.LockNotAvailable):
            why = f"a lock must be free within {_LOCKED} s, and {self._holders()} held it: end that transaction"
            return base.failure(where, "away", why)
        return base.failure(where, "failed", text)

    def _holders(self) -> str:
        """Returns the processes that lock what this target writes, as far as the database says so."""
        import psycopg

        query = (
            "SELECT DISTINCT pid, application_name, state, xact_start FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE granted AND pid <> pg_backend_pid() AND "
            "(locktype = 'advisory' OR relation IN (to_regclass(%s), to_regclass(%s)))"
        )
        rows: list[tuple] = []
        with suppress(psycopg.Error):
            self.connection.rollback()
            rows = self.run(query, [self.table.as_string(self.connection), POSITIONS])
            self.connection.rollback()
        shown = [f"process {p} ({name}, {state}, since {since})" for p, name, state, since in rows]
        return " and ".join(shown) or "another transaction"


# texts of a server, or of libpq, about a connection that will be refused each time: no code comes with them
_REFUSALS = (
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "does not exist",
    "is not permitted to log in",
    "permission denied",
)


def is_refusal(error: str) -> bool:
    """Returns True if a connection that failed would be refused again; False if the server is away.

    The text decides, in English. A server that says it in another language counts as away.
    """
    return any(text in error for text in _REFUSALS)
