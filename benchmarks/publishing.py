"""Publishing: seconds from a table's commit to its rows in a topic and in a database, and how fast a follower catches up.

Versions of a hundred rows are committed twice a second, one target at a time, and a reader of committed rows notes when it sees
each. The same table is then sent by Spark's own sink, which is at least once. In the end each row is in the target, once where
that is promised, with its values.
"""

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from threading import Event, Thread

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import types as T

from benchmarks import latency, measure, postgres, topic
from benchmarks.measure import BenchmarkError
from benchmarks.publish_tables import DATABASE, TOPIC
from lakehouse.declare import catalog
from lakehouse.declare.columns import ARRIVAL, PARTITION
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.delta import delta_writer, small_commits, table_creation
from lakehouse.storage.disk.layout import table_path

ROWS, EVERY = 100, 0.5  # of a version, and seconds between two
VERSIONS = 50  # that a follower has to catch up with
SPARK = "Spark's sink to Kafka, at least once"
_APP = "payments:stream:1"
_UP, _LIMIT = 120.0, 600.0  # seconds until the first row is there, and until all are
_LOOK = 0.005  # seconds between two looks into the database
_PLAIN_TOPIC = "plain-payments"
MISSING = (
    f"publish: {postgres.MISSING}, or psycopg is not (`pip install 'psycopg[binary]'`, or the extra [postgres] of this project); "
    "the line of PostgreSQL is left out"
)


@dataclass(frozen=True, slots=True)
class Published:
    """Seconds from each commit to its last row in the target, and rows a second of one that catches up."""

    name: str
    delays: tuple[float, ...]
    rate: float

    @property
    def p50(self) -> float:
        return median(self.delays)

    @property
    def p95(self) -> float:
        return float(np.quantile(self.delays, 0.95))


class Reader(ABC):
    """Notes when it sees each row of a target first, in a thread of its own."""

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}  # the number of a row -> seconds since the epoch
        self._ending = Event()
        self._thread = Thread(target=self._read, daemon=True)

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def await_row(self, n: int, limit: float, alive: Callable[[], bool]) -> None:
        """Returns when all rows up to that one are there. Raises BenchmarkError if they do not come."""
        deadline = time.monotonic() + limit
        while len(self.seen) <= n:
            if time.monotonic() > deadline or not alive() or not self._thread.is_alive():
                raise BenchmarkError(
                    f"publish: {len(self.seen):,} rows of {n + 1:,} are in the target after {limit:.0f} s, or who sends or "
                    "reads them has ended; the run is void"
                )
            time.sleep(0.01)

    @abstractmethod
    def _read(self) -> None: ...

    @abstractmethod
    def check(self, rows: int) -> None:
        """That the target has the rows up to that number, and nothing else. Raises BenchmarkError."""


class TopicReader(Reader):
    """A consumer of committed messages. `once`: whether each row may be there only once."""

    def __init__(self, settings: Settings, name: str, once: bool, partitions: int = 1) -> None:
        super().__init__()
        own = {
            "group.id": "benchmark",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
        }
        self._consumer, self._once = Consumer(client_config(settings) | own), once
        self._consumer.assign([TopicPartition(name, n, 0) for n in range(partitions)])
        self.values: list[bytes] = []

    def _read(self) -> None:
        while not self._ending.is_set():
            messages = self._consumer.consume(5_000, 0.02)
            now = time.time()
            for message in messages:
                if not message.error():
                    self.values.append(message.value())
                    self.seen.setdefault(int(message.key()), now)
        self._consumer.close()

    def check(self, rows: int) -> None:
        found = [json.loads(value) for value in self.values]
        wrong = sum(each["cents"] != cents(each["n"]) for each in found)
        numbers = {each["n"] for each in found}
        twice = len(found) - len(numbers) if self._once else 0
        if wrong or twice or numbers != set(range(rows)):
            raise BenchmarkError(
                f"publish: {len(numbers):,} rows of {rows:,} in the topic, {twice} of them twice, {wrong} wrong; void"
            )


class DatabaseReader(Reader):
    """A session that looks again and again."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn

    def _read(self) -> None:
        import psycopg

        with psycopg.connect(self._dsn, autocommit=True) as database:
            asked = f"SELECT max(n) FROM {DATABASE}"
            while not self._ending.is_set():
                if database.execute(f"SELECT to_regclass('{DATABASE}')").fetchall()[0][0]:
                    last = database.execute(asked).fetchall()[0][0]
                    now = time.time()
                    if last is not None:
                        self.seen |= dict.fromkeys(range(len(self.seen), last + 1), now)
                time.sleep(_LOOK)

    def check(self, rows: int) -> None:
        import psycopg

        asked = (
            "SELECT count(*), count(DISTINCT n), min(n), max(n), count(*) FILTER (WHERE cents <> n * 7919 % 100000) "
            f"FROM {DATABASE}"
        )
        with psycopg.connect(self._dsn) as database:
            found = database.execute(asked).fetchall()[0]
        if found != (rows, rows, 0, rows - 1, 0):
            raise BenchmarkError(
                f"publish: (rows, numbers, first, last, wrong) in the database are {found} for {rows:,} rows; the run is void"
            )


class Payments:
    """The table, with the rows that are committed to it so far, and when."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0
        self.commits: list[tuple[float, range]] = []
        kinds = {"n": T.LongType(), "account": T.StringType(), "cents": T.LongType()}
        columns = [T.StructField(name, kind) for name, kind in kinds.items()]
        columns += [T.StructField("at", T.TimestampType()), T.StructField(ARRIVAL, _ARRIVED)]
        columns += [T.StructField(PARTITION, T.StringType())]
        table_creation.create(path, T.StructType(columns), True, "")

    def append(self, rows: int) -> None:
        """One version of so many rows."""
        numbers = range(self.rows, self.rows + rows)
        batch = len(self.commits)
        metadata = delta_writer._text(_APP, batch, {"inputs": {}})
        files = small_commits.files_of(_rows(numbers), self.path)
        small_commits.commit(files, self.path, _APP, batch, metadata)
        self.commits.append((time.time(), numbers))
        self.rows += rows


def run(base: Settings, seconds: float, rows: int, say: Callable[[str], None]) -> list[Published]:
    """Versions for so many seconds, and so many rows to catch up with, for each target. Raises BenchmarkError."""
    found = []
    with topic.brokers(base) as servers:
        base = replace(base, bootstrap_servers=servers, tables=("benchmarks.publish_tables",))
        kafka_broker.ensure_topics(base, {TOPIC: 1, _PLAIN_TOPIC: 1}, topic.TOPIC)
        ours, plain = (replace(base, root=base.root / name) for name in ("topic", "plain"))
        with TopicReader(ours, TOPIC, once=True) as reader:
            found.append(_measured("Kafka", ours, _follower(TOPIC), reader, seconds, rows))
        say(f"publish, Kafka: median {found[-1].p50:.3f} s, {found[-1].rate:,.0f} rows/s")
        if postgres.installed() is None or not find_spec("psycopg"):
            say(MISSING)
        else:
            with postgres.running() as server:
                environment = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port)}
                environment |= {"PGUSER": postgres.USER, "PGDATABASE": "postgres"}
                own = replace(base, root=base.root / "database")
                with DatabaseReader(server.dsn) as reader:
                    command = _follower(DATABASE)
                    found.append(
                        _measured("PostgreSQL", own, command, reader, seconds, rows, environment)
                    )
            say(f"publish, PostgreSQL: median {found[-1].p50:.3f} s, {found[-1].rate:,.0f} rows/s")
        command = ["-m", "benchmarks.publish_plain", str(_path(plain)), _PLAIN_TOPIC]
        with TopicReader(plain, _PLAIN_TOPIC, once=False) as reader:
            found.append(_measured(SPARK, plain, command, reader, seconds, rows))
        say(f"publish, {SPARK}: median {found[-1].p50:.3f} s, {found[-1].rate:,.0f} rows/s")
    return found


def _measured(
    name: str,
    settings: Settings,
    command: Sequence[str],
    reader: Reader,
    seconds: float,
    rows: int,
    environment: dict[str, str] | None = None,
) -> Published:
    payments = Payments(_path(settings))
    payments.append(ROWS)
    environment = to_environment(settings) | (environment or {})
    log = settings.root / "publish.log"
    with _sending(command, environment, log) as alive:
        reader.await_row(payments.rows - 1, _UP, alive)
        warm, due = time.time() + min(latency.WARM_UP_MS / 1000, seconds / 2), time.monotonic()
        for _ in range(round(seconds / EVERY)):
            payments.append(ROWS)
            due += EVERY
            time.sleep(max(due - time.monotonic(), 0))
        reader.await_row(payments.rows - 1, _UP, alive)
    delays = [
        max(reader.seen[n] for n in numbers) - at for at, numbers in payments.commits if at >= warm
    ]
    there = payments.rows
    for _ in range(VERSIONS):
        payments.append(rows // VERSIONS)
    with _sending(command, environment, log) as alive:
        reader.await_row(payments.rows - 1, _LIMIT, alive)
    instants = sorted(reader.seen[n] for n in range(there, payments.rows))
    followed = sum(at > instants[0] for at in instants)
    reader.check(payments.rows)
    return Published(name, tuple(delays), followed / max(instants[-1] - instants[0], 1e-3))


@contextmanager
def _sending(
    command: Sequence[str], environment: dict[str, str], log: Path
) -> Iterator[Callable[[], bool]]:
    """Who sends, until the end of the block; whether it still runs."""
    with measure.started([sys.executable, *command], environment, log) as tree:
        yield lambda: tree.root.poll() is None
        tree.root.terminate()
        tree.end(_UP)


def _follower(target: str) -> list[str]:
    return ["-m", "streaming_jobs.exporters.follower", target]


def _path(settings: Settings) -> Path:
    return table_path(settings, catalog.load(settings).table("payments"))


def cents(n: int) -> int:
    return n * 7_919 % 100_000


_ARRIVED = T.StructType(
    [
        T.StructField("watermark", T.TimestampType()),
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("time", T.TimestampType()),
    ]
)


def _rows(numbers: range) -> pa.Table:
    n = np.arange(numbers.start, numbers.stop)
    at = pa.array((n + topic.START_MS) * 1_000, pa.timestamp("us", "UTC"))
    zeros, many = pa.array(np.zeros(len(n), np.int32)), len(n)
    arrival = {
        "watermark": pa.nulls(many, pa.timestamp("us", "UTC")),
        "topic": pa.array(["payments-in"] * many),
        "partition": zeros,
        "offset": pa.array(n),
        "time": at,
    }
    columns = {
        "n": pa.array(n),
        "account": pa.array([f"account-{each % 1_000}" for each in n]),
        "cents": pa.array(cents(n)),
        "at": at,
        ARRIVAL: pa.StructArray.from_arrays(list(arrival.values()), names=list(arrival)),
        PARTITION: pa.array(["2026-01-01-00"] * many),
    }
    return pa.table(columns)
