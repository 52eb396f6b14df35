"""What a step of a keyed or versioned table costs: median and 95th percentile of seconds, and bytes written.

    python -m benchmarks.keyed_step --keys 1000000 --changed 1000
    python -m benchmarks.keyed_step --ttl --keys 10000000 --changed 10000 --steps 120

First through the store alone: a table of so many rows, of which each step replaces some by chance. Then through the stream: a
record that fills a keyed table, a versioned one, and one that joins the record with the first; first
a commit of all keys, then of a few.

With `--ttl` a keyed table with a `ttl` holds so many keys instead. In each step as many expire as come. Of the first and the
second half of the steps: seconds of a step, and rows, files and bytes of the table.
"""

import argparse
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import keyed_step_tables
from benchmarks.keyed_step_tables import DELAY, TTL
from benchmarks.measure import BenchmarkError, own_cpu
from lakehouse.ranges import EPOCH
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.storage.delta import delta_writer, log_state, row_keys, table_creation
from lakehouse.storage.keyed import keyed_files, point_reads
from lakehouse.storage.position import table_state
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.engines import ingest
from lakehouse.stream.micro_batch import BatchLog, stream_run
from lakehouse.stream.reading.raw_records import raw_records
from lakehouse.testing import Stage

START = datetime(2026, 1, 1, tzinfo=UTC)
APP = "accounts:stream:1"
_MICROSECOND = timedelta(microseconds=1)
# steps that do not count, beside those in which nothing expires yet: an index is read
_STARTING = 3
# touched in one step, above which the table is computed whole (`stream.engines.groups`)
_GROUPS = 20_000
COLUMNS = ("account", "amount", "city", "at")


def store(spark: SparkSession, root: Path, keys: int, changed: int, steps: int) -> None:
    """Steps of `keyed_files` alone, and point reads beside them."""
    path = root / "accounts"
    made = row_keys.keyed(_accounts(spark.range(keys)), ["account"])
    table_creation.create(path, made.schema, False, "", table_creation.KEYED)
    began = time.monotonic()
    files = max(1, keys // keyed_files.LARGE)
    delta_writer.swap(made, path, APP, 0, {"inputs": {}}, files, ["account"])
    print(f"store: {keys:,} rows written by Spark in {time.monotonic() - began:.1f} s")
    before, began = psutil.Process().memory_info().rss, time.monotonic()
    keyed_files.can_upsert(path)
    held = (psutil.Process().memory_info().rss - before) / 2**20
    print(f"store: the index read in {time.monotonic() - began:.2f} s, {held:.0f} MiB")
    chance = np.random.default_rng(1)
    seconds, spent, sizes, reads = [], [], [], []
    for batch in range(1, steps + 1):
        ids = spark.createDataFrame(pa.table({"id": chance.choice(keys, changed, replace=False)}))
        rows = row_keys.keyed(_accounts(ids), ["account"]).toArrow()
        size, began, cpu = _bytes(path), time.monotonic(), time.process_time()
        delta_writer.upsert(rows, path, APP, batch, {"inputs": {}}, rows[row_keys.KEY])
        seconds.append(time.monotonic() - began)
        spent.append(time.process_time() - cpu)
        sizes.append(_bytes(path) - size)
        began = time.monotonic()
        assert point_reads.get(path, ["account"], f"account-{chance.integers(keys):09}")
        reads.append(time.monotonic() - began)
    _tell(f"store: {changed:,} of {keys:,} keys changed", seconds, sizes)
    print(
        f"store: CPU seconds: median {median(spent):.3f}, mean {sum(spent) / len(spent):.3f}, greatest {max(spent):.3f}"
    )
    print(f"store: {len(log_state.newest(path).files)} files at the end")
    print(
        f"store: point read: median {median(reads) * 1000:.0f} ms, 95 % {_high(reads) * 1000:.0f} ms, first {reads[0]:.2f} s"
    )


def stream(session: Session, keys: int, changed: int, changed_versions: int, steps: int) -> None:
    """Steps of the real streams, one commit of the record each."""
    chance, feed = np.random.default_rng(2), Feed(session, timedelta(seconds=10))
    feed(session.spark.range(0, keys, 1, max(2, keys // 1_000_000)), keys)
    started = {}
    for name in ("balances", "cities"):
        began = time.monotonic()
        queries.start(session, session.catalog.table(name), available_now=True).awaitTermination()
        print(
            f"stream: {name}: first micro-batch, of {keys:,} rows: {time.monotonic() - began:.1f} s"
        )
    began = time.monotonic()
    joined = session.catalog.table("moved_and_left")
    queries.start(session, joined, available_now=True).awaitTermination()
    print(f"stream: moved_and_left: first micro-batch: {time.monotonic() - began:.1f} s")
    for name, count in (
        ("balances", changed),
        ("cities", changed_versions),
        ("moved_and_left", changed),
    ):
        if name == "moved_and_left":
            started["balances"] = queries.start(session, session.catalog.table("balances"))
        started[name] = query = queries.start(session, session.catalog.table(name))
        path, seconds, spent, sizes = session.path(session.catalog.table(name)), [], [], []
        for _ in range(steps):
            feed(
                session.spark.createDataFrame(
                    pa.table({"id": chance.choice(keys, count, replace=False)})
                ).coalesce(1),
                count,
            )
            if name == "moved_and_left":  # which reads it
                started["balances"].processAllAvailable()
            size, cpu = _bytes(path), own_cpu(session.spark)
            query.processAllAvailable()
            spent.append(own_cpu(session.spark) - cpu)
            seconds.append(
                next(session.commit_log(session.catalog.table(name)).by_stream()).seconds
            )
            sizes.append(_bytes(path) - size)
        batches = [_milliseconds(p) / 1000 for p in list(query.recentProgress)[-steps:] if _rows(p)]
        _tell(
            f"stream: {name}: {count:,} of {keys:,} keys changed, written", seconds[5:], sizes[5:]
        )
        _tell(
            f"stream: {name}: the whole step, reading and computing included",
            batches[5:],
            sizes[5:],
        )
        print(
            f"stream: {name}: CPU seconds of Python and JVM, all that a step takes: median {median(spent[5:]):.2f}",
            flush=True,
        )
        query.stop()
    started["balances"].stop()


class Feed:
    """Commits of the record, each `apart` from the one before in event time."""

    def __init__(self, session: Session, apart: timedelta) -> None:
        self.run = stream_run(
            session, table_state.read(session, session.catalog.table("movements"))
        )
        self.apart, self.offset, self.batch = apart, 0, 0

    def __call__(self, ids: DataFrame, count: int, at: Column | None = None) -> None:
        """One commit; `at`: the event time of each, if it is not that of the commit."""
        accounts = _accounts(ids, F.lit(START + self.apart * self.batch) if at is None else at)
        value = F.to_json(F.struct(*accounts.columns)).cast("binary")
        placed = accounts.select(
            F.lit(None).cast("binary").alias("key"),
            value.alias("value"),
            F.lit(0).alias("partition"),
            (F.row_number().over(_any_order()) + self.offset - 1).cast("bigint").alias("offset")
            if count <= 100_000
            else (F.monotonically_increasing_id() + self.offset).alias("offset"),
            F.lit(START + timedelta(days=3)).alias("timestamp"),
        )
        self.offset += count if count <= 100_000 else 1 << 40
        log = BatchLog(EPOCH, datetime.now(UTC), {"movements": {"0": self.offset}})
        ingest.ingest_batch(
            self.run, raw_records(self.run, {"movement_topic": placed}), self.batch, log
        )
        self.batch += 1


def expiring(session: Session, keys: int, changed: int, steps: int) -> None:
    """A keyed table with a `ttl` holds so many keys; each step brings `changed` new ones, and as many expire.

    Raises BenchmarkError if the table holds other rows in the end than those that count.
    """
    starting = starting_steps(keys, changed, steps)
    table, apart = session.catalog.table("moved_lately"), TTL // keys
    feed, path, process = Feed(session, timedelta(0)), session.path(table), psutil.Process()
    moment = F.timestamp_micros(
        F.col("id") * (apart // _MICROSECOND) + (START - EPOCH) // _MICROSECOND
    )
    began = time.monotonic()
    feed(session.spark.range(0, keys, 1, max(2, keys // keyed_files.LARGE)), keys, moment)
    filled = time.monotonic()
    query = queries.start(session, table)
    query.processAllAvailable()
    print(
        f"ttl: {keys:,} keys fed in {filled - began:.1f} s, and in the table {time.monotonic() - filled:.1f} s later",
        flush=True,
    )
    taken: list[tuple[float, int, int, int, int]] = []
    for first in range(keys, keys + steps * changed, changed):
        feed(session.spark.range(first, first + changed, 1, 1), changed, moment)
        query.processAllAvailable()
        spent = [_milliseconds(p) for p in list(query.recentProgress)[-10:] if _rows(p)]
        files, memory = log_state.newest(path).files.values(), process.memory_info().rss
        size = sum(file["size"] for file in files)
        taken.append((spent[-1] / 1000, log_state.rows(path), len(files), size, memory))
    query.stop()
    measured = taken[starting:]
    half = len(measured) // 2
    for name, part in (("first", measured[:half]), ("second", measured[half:])):
        seconds, *amounts = zip(*part, strict=True)
        rows, count, size, memory = map(median, amounts)
        print(
            f"ttl: {name} half, {len(part)} steps of {changed:,} new keys: median {median(seconds):.3f} s, 95 % "
            f"{_high(list(seconds)):.3f} s; {rows:,.0f} rows, {count:.0f} files, {size / 2**20:,.1f} MiB; "
            f"{memory / 2**20:,.0f} MiB of memory of Python (medians)",
            flush=True,
        )
    frontier = next(session.commit_log(table).by_stream()).frontier
    assert frontier is not None
    expired = max(0, -((START + TTL - frontier) // apart))
    wanted = keys + steps * changed - expired
    if taken[-1][1] != wanted:
        raise BenchmarkError(
            f"moved_lately has {taken[-1][1]:,} rows, and {wanted:,} count at its frontier; the run is void"
        )


def starting_steps(keys: int, changed: int, steps: int) -> int:
    """How many of the steps do not count. Raises BenchmarkError for sizes that would measure something else."""
    starting = _STARTING + math.ceil(DELAY / (TTL // keys * changed))
    if steps < 2 * starting:
        raise BenchmarkError(
            f"steps={steps}: the first {starting} do not count, and both halves need some; give {2 * starting} or more"
        )
    if 2 * changed > _GROUPS:
        raise BenchmarkError(
            f"changed={changed:,}: as many keys expire as come, and a step that touches more than {_GROUPS:,} computes the "
            f"table whole; give {_GROUPS // 2:,} or fewer"
        )
    if steps * changed > keys:
        raise BenchmarkError(
            f"keys={keys:,}, changed={changed:,}, steps={steps}: the keys that expire are those of the first commit; give "
            f"{steps * changed:,} keys or more"
        )
    return starting


def _accounts(ids: DataFrame, at: Column | None = None) -> DataFrame:
    return ids.select(
        F.format_string("account-%09d", "id").alias("account"),
        (F.rand() * 1000).cast("decimal(9,2)").alias("amount"),
        F.concat(F.lit("city "), (F.rand() * 10_000).cast("int")).alias("city"),
        (F.lit(START) if at is None else at).alias("at"),
    )


def _any_order():
    from pyspark.sql import Window

    return Window.orderBy(F.lit(1))


def _milliseconds(progress) -> int:
    return progress.durationMs.get("triggerExecution") or progress.durationMs.get("addBatch", 0)


def _rows(progress) -> int:
    return progress.numInputRows


def _bytes(path: Path) -> int:
    """What is on disk; nothing is removed meanwhile."""
    folders = (path, path / "_delta_log")
    return sum(
        entry.stat().st_size for folder in folders for entry in folder.iterdir() if entry.is_file()
    )


def _high(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


def _tell(what: str, seconds: list[float], sizes: list[int]) -> None:
    print(
        f"{what}: median {median(seconds):.3f} s, 95 % {_high(seconds):.3f} s, greatest {max(seconds):.3f} s of {len(seconds)} "
        f"steps; {median(sizes) / 1024:,.0f} KiB, mean {sum(sizes) / len(sizes) / 1024:,.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument(
        "--changed",
        type=int,
        default=1_000,
        help="keys in a step; of the versioned table a tenth of them",
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", choices=("store", "stream"), help="one of the two parts")
    parser.add_argument(
        "--ttl", action="store_true", help="neither: a table of these keys, in which rows expire"
    )
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="keyed_step"))
    spark = spark_session.create(from_environment(), "keyed_step")

    def session() -> Session:
        settings = {"fresh_within": "10 milliseconds", "max_files_per_trigger": 1_000}
        return Stage(spark, root / "lakehouse", keyed_step_tables, **settings).session

    fewer = max(1, given.changed // 10)
    measured: dict[str, Callable[[], None]] = {
        "store": lambda: store(spark, root, given.keys, given.changed, given.steps),
        "stream": lambda: stream(session(), given.keys, given.changed, fewer, given.steps),
    }
    if given.ttl:
        measured = {"ttl": lambda: expiring(session(), given.keys, given.changed, given.steps)}
    try:
        for name, part in measured.items():
            if given.ttl or given.only in (None, name):
                part()
    finally:
        print(
            f"load of the machine over the last 15 minutes: {os.getloadavg()[2]:.0f}, on {os.cpu_count()} cores"
        )
        spark.stop()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
