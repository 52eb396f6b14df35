"""What each query of Nexmark costs, ours and as a stream of Spark alone, in one process.

    python -m benchmarks.nexmark.run EVENTS STEPS STEP RESULT [TABLE ...]        (RESULT: a JSON file; `benchmarks.nexmark`)

The ingest tables are filled first. Then each side of each query runs alone, ours and Spark's by turns first. Two tables
of each side come before, for the JVM is cold at first, and are not reported. A side catches up with all that there is, in a
stream that ends at the present, its start included. Then it goes on with STEPS commits of STEP events each, which are ten
seconds of event time. What a query of ours reads of other queries is up to date before. Events are those of all topics; a topic
that a side does not read is fed later. TABLE: these queries alone.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.measure import BenchmarkError
from benchmarks.nexmark import producer, tables
from benchmarks.nexmark import spark as nexmark_spark
from benchmarks.nexmark.comparison import Query, Side, Size
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.producers.workload import Record, Workload
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed
from lakehouse.testing import Stage

START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000
PATIENCE = 60.0  # seconds
LASTS = 10  # seconds of event time in a step: in each a window closes
TOPICS = {
    producer.PEOPLE: ("nexmark_people",),
    producer.AUCTIONS: ("nexmark_auctions",),
    producer.BIDS: ("nexmark_bids", "nexmark_bids_by_arrival"),
}
WARM_UP = (
    ("people", "auctions"),
    ("q0_bids", "q17_bids_by_auction"),
)  # ours; of Spark's, beside those that count
INGEST = tuple(name for names in TOPICS.values() for name in names)
Start = Callable[
    ..., Any
]  # starts a query, ours or Spark's; `available_now` ends it at the present


class House:
    """What was sent, and what of it is in the ingest tables."""

    def __init__(self, stage: Stage, rate: int) -> None:
        self.stage, self.events, self.last_ms = stage, 0, START
        self._sent = producer.records(Workload(rate=rate, partitions=2), START)
        self._waiting: dict[str, list[Record]] = {name: [] for name in INGEST}

    def send(self, count: int) -> None:
        self._queue(list(islice(self._sent, count)))
        self.events += count

    def _queue(self, records: Sequence[Record]) -> None:
        for record in records:
            self.last_ms = max(self.last_ms, record.time_ms)
            for name in TOPICS[record.topic]:
                self._waiting[name].append(record)

    def feed(self, ingest_tables: Sequence[str]) -> None:
        """One commit to each of them, of all that was sent and is not in it yet."""
        for name in ingest_tables:
            if records := self._waiting[name]:
                sent = datetime.fromtimestamp(max(each.time_ms for each in records) / 1000, UTC)
                values = [(each.partition, each.value) for each in records]
                self.stage.feed(name, values, sent=sent)
                self._waiting[name] = []

    def close(self) -> None:
        """Moves event time and the clock on, so that all windows close."""
        self.feed(INGEST)
        self.stage.wait(timedelta(hours=2))
        later = producer.records(Workload(rate=50), self.last_ms + DAY_MS)
        last = {each.topic: each for each in islice(later, 50)}.values()
        for _ in range(2):  # the second carries the watermark that follows from the first
            self._queue([each._replace(partition=p) for each in last for p in range(2)])
            self.feed(INGEST)


class Run:
    """The chosen queries, one after the other."""

    def __init__(self, house: House, size: Size, only: Sequence[str]) -> None:
        self.house, self.stage, self.size = house, house.stage, size
        self.session, self.catalog = house.stage.session, house.stage.session.catalog
        self.folder = self.session.settings.root / "by_spark"
        chosen = [t for t in self.catalog if number(t) is not None and (not only or t.name in only)]
        self.tables = sorted(chosen, key=partial(place, self.catalog))
        if unknown := {*only} - {t.name for t in self.tables}:
            raise BenchmarkError(f"only={min(unknown)}: no query of Nexmark has this name")
        self.streams: dict[str, nexmark_spark.Stream] = {}  # of Spark's

    def measured(self) -> list[Query]:
        """Raises BenchmarkError, also if the tables are not those of a batch run in the end."""
        self._warm_up()
        found = [self._query(turn, table) for turn, table in enumerate(self.tables)]
        self._end()
        queries = {query.keywords["name"]: query for query in found}
        return [
            queries[table.name](rows=self.stage.rows(table.name).count())
            for table in sorted(self.tables, key=number)
        ]

    def _warm_up(self) -> None:
        """Both sides, by tables that are not reported: a JVM that is cold would slow the first queries down."""
        ours, sparks = (map(self.catalog.table, names) for names in WARM_UP)
        for table in ours:
            queries.start(self.session, table, available_now=True).awaitTermination()
        for table in sparks:
            folder = self.folder / f"warm_up_{table.name}"
            stream = nexmark_spark.Stream(self.session, table, folder)
            stream.start(available_now=True).awaitTermination()

    def _query(self, turn: int, table: Table) -> partial[Query]:
        before = above(self.catalog, table)
        sides: dict[str, Callable[[], Side]] = {
            "ours": lambda: self._side(table, partial(queries.start, self.session, table), before),
            "spark": lambda: self._side(table, self._stream(table).start, []),
        }
        measured: dict[str, Any] = {"name": table.name}
        for name in sorted(sides, reverse=bool(turn % 2)):
            try:
                measured[name] = side = sides[name]()
                steps = " ".join(f"{each:.2f}" for each in side.steps)
                print(f"{table.name}, {name}: {side.catch_up:.2f} s; {steps}", flush=True)
            except nexmark_spark.Impossible as err:
                measured["cannot"] = str(err)
                self.streams.pop(table.name, None)
            except (StreamingQueryException, StepFailed) as err:
                causes = [line for line in str(err).splitlines() if line.strip()]
                why = f"{causes[0][:500]} ... {causes[-1][:500]}"
                raise BenchmarkError(f"table={table.name}, {name}: {why}; the run is void") from err
        return partial(Query, **measured)

    def _stream(self, table: Table) -> nexmark_spark.Stream:
        stream = nexmark_spark.Stream(self.session, table, self.folder / table.name)
        self.streams[table.name] = stream
        return stream

    def _side(self, table: Table, start: Start, before: Sequence[Table]) -> Side:
        ingest = ingest_of(self.catalog, table)
        self.house.feed(ingest)
        self.stage.run(*(each.name for each in before))
        events, began = self.house.events, time.monotonic()
        start(available_now=True).awaitTermination()
        caught_up = time.monotonic() - began
        query = start()
        running = [*(queries.start(self.session, each) for each in before), query]
        steps = []
        try:
            await_all(running)
            for _ in range(self.size.steps):
                last = newest(query)
                self.house.send(self.size.step)
                self.house.feed(ingest)
                await_step(running, last)
                steps.append(seconds(query, last))
        finally:
            for each in running:
                each.stop()
        return Side(events, caught_up, steps)

    def _end(self) -> None:
        """All read to the end, and compared. Raises BenchmarkError."""
        self.house.close()
        needed = {t.name for table in self.tables for t in (*above(self.catalog, table), table)}
        needed |= {*WARM_UP[0]}
        tables = [t for t in self.catalog if t.name in needed]
        self.stage.run(*(t.name for t in tables))
        for table in tables:
            certificate = reconciliation.reconcile(self.session, table)
            if certificate.verdict != "EQUAL":
                found = f"{certificate.verdict}: {certificate.detail}"
                raise BenchmarkError(f"table={table.name}: {found}; the run is void")
            if table.name in self.streams:
                self._compare(table)

    def _compare(self, table: Table) -> None:
        """Ours with those of Spark's stream."""
        self.streams[table.name].start(available_now=True).awaitTermination()
        theirs = self.session.spark.read.format("delta").load(str(self.folder / table.name))
        rows = self.stage.rows(table.name)
        columns = [name for name in rows.columns if not name.startswith("_")]
        sides = [
            self._closed(table, each).select(*columns, F.lit(sign).alias("_side"))
            for each, sign in ((rows, 1), (theirs, -1))
        ]
        of_row = sides[0].union(sides[1]).groupBy(*columns).agg(F.sum("_side").alias("_more"))
        more, less = (F.sum(F.greatest(F.col("_more") * n, F.lit(0))) for n in (1, -1))
        (apart,) = of_row.where("_more <> 0").select(more, less).collect()
        if any(apart):
            raise BenchmarkError(
                f"table={table.name}: {apart[0]:,} rows are not in the table of Spark's stream, and {apart[1]:,} rows of that "
                "one are not in ours; the run is void"
            )

    def _closed(self, table: Table, rows: DataFrame) -> DataFrame:
        """Of windows those that were closed before the events that moved time on: of the last ones each side has its own."""
        frontier = self.stage.frontier(table.name)
        if table.window is None or frontier is None:
            return rows
        return rows.where(F.col("window.end") <= F.lit(frontier - timedelta(hours=1)))


def number(table: Table) -> int | None:
    """Of a query, in the benchmark."""
    found = re.match(r"q(\d+)_", table.name)
    return int(found[1]) if found else None


def place(catalog: Catalog, table: Table) -> tuple[int, int]:
    """By its number, but behind all that it reads."""
    of = [n for each in (table, *above(catalog, table)) if (n := number(each)) is not None]
    return max(of), len(of)


def above(catalog: Catalog, table: Table) -> list[Table]:
    """The queries of ours that it reads, in the order in which they read one another."""
    found: set[str] = set()
    for each in (read for name in table.inputs if (read := catalog.tables.get(name))):
        if not (each.kind.reads_sources or each.kind.is_reference):
            found |= {each.name, *(t.name for t in above(catalog, each))}
    return [t for t in catalog if t.name in found]


def ingest_of(catalog: Catalog, table: Table) -> list[str]:
    """The ingest tables that it is computed from."""
    reads = {name for each in (table, *above(catalog, table)) for name in each.inputs}
    return [name for name in INGEST if name in reads]


def await_all(running: Sequence[Any]) -> None:
    for query in running:  # inputs first
        query.processAllAvailable()


def await_step(running: Sequence[Any], last: int) -> None:
    """Until the last of them has taken a step behind `last`, and all that there is.

    Spark's `processAllAvailable` returns at once if the query had just looked for news. Raises BenchmarkError.
    """
    deadline = time.monotonic() + PATIENCE
    await_all(running)
    while newest(running[-1]) == last:
        if time.monotonic() > deadline:
            raise BenchmarkError(
                f"{running[-1].name}: no step {PATIENCE:.0f} s after its input; void"
            )
        time.sleep(0.02)
    await_all(running)


def newest(query: Any) -> int:
    """The last micro-batch that it has taken; Spark reports the next one, too, while it waits."""
    return max((each.batchId for each in _taken(query)), default=-1)


def seconds(query: Any, last: int) -> float:
    """Of all micro-batches behind the `last` one, as the query reports them: Spark closes windows in a second one."""
    behind = [each.durationMs for each in _taken(query) if each.batchId > last]
    return sum(spent.get("triggerExecution", spent["addBatch"]) for spent in behind) / 1000


def _taken(query: Any) -> list[Any]:
    return [each for each in query.recentProgress if "addBatch" in each.durationMs]


def main(events: int, steps: int, step: int, result: Path, *only: str) -> None:
    settings = from_environment()
    with spark_session.opened(settings, "nexmark") as spark:
        stage = Stage(spark, settings.root / "nexmark", tables, fresh_within="10 milliseconds")
        house = House(stage, max(10, step // LASTS))
        for _ in range(4):
            house.send(events // 4)
            house.feed(INGEST)
        found = Run(house, Size(events, steps, step), only).measured()
    result.write_text(json.dumps([asdict(each) for each in found]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), Path(sys.argv[4]), *sys.argv[5:])
