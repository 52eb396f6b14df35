"""Change data: seconds from the commit of a database's transaction to its row in the keyed table that follows it.

PostgreSQL, Debezium on Kafka Connect, a broker and the job, all real. Each transaction changes one row, a row once. A row can be
read when the Delta commit that has it is in the table's log; the time of that file is the instant.
"""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from benchmarks import debezium, latency, postgres, topic
from benchmarks.lag import Lag
from benchmarks.measure import BenchmarkError
from lakehouse.declare import catalog
from lakehouse.settings import Settings
from lakehouse.storage.disk.layout import table_path

if TYPE_CHECKING:
    import psycopg

RATE = 200  # transactions a second
PIPELINE = "cdc_tables"
MISSING = (
    f"cdc: {postgres.MISSING}, or psycopg is not (`pip install 'psycopg[binary]'`, or the extra [postgres] of this project); "
    "the part is left out"
)
_LIMIT = 300.0  # seconds until the last row is there
_CREATED = """
CREATE TABLE accounts (id bigint PRIMARY KEY, balance numeric(12, 2) NOT NULL, moved bigint);
INSERT INTO accounts SELECT n, 100, NULL FROM generate_series(0, %s) n;
"""
_SUMS = "SELECT count(*), sum(balance), sum(moved) FROM accounts"


def missing(settings: Settings) -> str:
    """What is not installed, and how to get it; empty if all is there."""
    if postgres.installed() is None or not find_spec("psycopg"):
        return MISSING
    try:
        _connect(settings)
    except BenchmarkError as err:
        return f"cdc: {err}; the part is left out"
    return ""


def run(settings: Settings, seconds: int, rate: int = RATE) -> Lag:
    """Changes a row `rate` times a second for so long; the first half, at most two minutes, does not count.

    Raises BenchmarkError if the table does not become the database's.
    """
    import psycopg

    settings = replace(settings, tables=("benchmarks.cdc_tables",))
    accounts = table_path(settings, catalog.load(settings).table("accounts"))
    rows = rate * seconds
    with topic.brokers(settings) as servers, postgres.running(debezium.LOGICAL) as server:
        settings = replace(settings, bootstrap_servers=servers)
        with closing(psycopg.connect(server.dsn, autocommit=True)) as database:
            database.execute(_CREATED.replace("%s", str(rows - 1)))
            of = debezium.connector(server.dsn, "public.accounts", topic_prefix="bank")
            connect = debezium.Worker(settings.root / "connect", _connect(settings), servers, of)
            try:
                connect.start()
                with latency.our_job(settings, PIPELINE) as job:
                    _await(accounts, 0, rows)
                    cpu = job.cpu()
                    committed = _change(database, rows, rate)
                    cpu = (job.cpu() - cpu) / seconds
                    _await(accounts, rows, rows)
            finally:
                connect.kill()
            _check(accounts, database)
    seen = readable(accounts)
    if lost := rows - len(seen):
        raise BenchmarkError(f"cdc: {lost:,} changes are in no file of the table; the run is void")
    warm = committed[0] + min(latency.WARM_UP_MS / 1000, seconds / 2)
    delays = [seen[n] - at for n, at in enumerate(committed) if at >= warm]
    return Lag("cdc", "a transaction's commit to its readable row", tuple(delays), cpu)


def _connect(settings: Settings) -> Path:
    return debezium.fetched(settings.jars.parent / "debezium")


def _change(database: "psycopg.Connection", rows: int, rate: int) -> Sequence[float]:
    """One row after the other: when each was committed, in seconds since the epoch."""
    committed, began = [], time.monotonic()
    change = "UPDATE accounts SET balance = balance + 1, moved = %s WHERE id = %s"
    for n in range(rows):
        time.sleep(max(began + n / rate - time.monotonic(), 0))
        database.execute(change, (n, n))
        committed.append(time.time())
    return committed


def _await(accounts: Path, changed: int, rows: int) -> None:
    """Until the table has all rows, and so many of them are changed."""
    deadline, found = time.monotonic() + _LIMIT, (0, 0)
    while found != (changed, rows):
        if time.monotonic() > deadline:
            raise BenchmarkError(
                f"cdc: {found[1]:,} rows, {found[0]:,} of them changed, {_LIMIT:.0f} s after there were {rows:,} and "
                f"{changed:,}; the run is void"
            )
        time.sleep(0.5)
        if DeltaTable.is_deltatable(str(accounts)):
            found = _asked(accounts, "SELECT count(moved), count(*) FROM accounts")


def _check(accounts: Path, database: "psycopg.Connection") -> None:
    """That the table is the database's: as many rows, and the same sums."""
    wanted = database.execute(_SUMS).fetchone()
    if (found := _asked(accounts, _SUMS)) != wanted:
        raise BenchmarkError(
            f"cdc: (rows, balance, moved) are {found} in the table and {wanted} in the database; the run is void"
        )


def _asked(accounts: Path, query: str) -> tuple:
    import pyarrow as pa

    reader = QueryBuilder().register("accounts", DeltaTable(accounts)).execute(query)
    (row,) = pa.table(reader.read_all()).to_pylist()
    return tuple(row.values())


def readable(accounts: Path) -> dict[int, float]:
    """The number of a change -> when its row could be read first, in seconds since the epoch."""
    found: dict[int, float] = {}
    for commit in sorted(accounts.glob("_delta_log/*.json")):
        at = commit.stat().st_mtime
        for line in commit.read_text().splitlines():
            if added := json.loads(line).get("add"):
                file = accounts / unquote(added["path"])
                if file.exists():  # else it was tidied, after a later commit had taken its place
                    moved = pq.read_table(file, columns=["moved"], partitioning=None)["moved"]
                    for n in moved.drop_null().to_pylist():
                        found.setdefault(n, at)
    return found
