"""What each query of Nexmark costs: catching up with the topics, steps as events come, and the same function as plain Spark.

    python -m benchmarks.nexmark [--events 100000] [--steps 10] [--step 1000] [--only q5_hot_items ...]

The ingest tables are filled first. Then each query catches up with them, one after the other, in a stream that ends at the
present. Then all go on at once with `steps` commits of `step` events each, and share the cores. Events are those of all topics.
"Plain Spark" is the function of the table over the same stored rows, written as Parquet; of a query that reads other queries,
over these tables. A run is void if a table is not EQUAL to its batch run in the end.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from statistics import median

from rich import box
from rich.table import Table as Shown

from benchmarks.measure import BenchmarkError
from lakehouse.cli.console import out
from lakehouse.declare.columns import ORIGIN, PARTITION
from lakehouse.declare.table import Table
from lakehouse.examples.nexmark import producer, tables
from lakehouse.producers.workload import Record, Workload
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.storage.row_keys import KEY
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.testing import Stage
from lakehouse.transform import lateness

START = int(datetime(2026, 1, 1, 10, tzinfo=UTC).timestamp() * 1000)
TOPICS = {
    producer.PEOPLE: ("nexmark_people",),
    producer.AUCTIONS: ("nexmark_auctions",),
    producer.BIDS: ("nexmark_bids", "nexmark_bids_by_arrival"),
}


@dataclass(frozen=True, slots=True)
class Found:
    query: str
    catch_up: float  # seconds
    plain: float
    steps: Sequence[float]
    rows: int


def feed(stage: Stage, records: Sequence[Record]) -> None:
    """One commit of each ingest table."""
    sent = datetime.fromtimestamp(max(r.time_ms for r in records) / 1000, UTC)
    for topic, names in TOPICS.items():
        values = [(r.partition, r.value) for r in records if r.topic == topic]
        for name in names:
            stage.feed(name, values, sent=sent)


def close(stage: Stage) -> None:
    """Moves event time and the clock on, so that all windows close."""
    stage.wait(timedelta(hours=2))
    later = producer.records(Workload(rate=50), START + 2 * 3_600_000 + 86_400_000)
    last = {each.topic: each for each in islice(later, 50)}.values()
    for _ in range(2):  # the second carries the watermark that follows from the first
        feed(stage, [each._replace(partition=p) for each in last for p in range(2)])


def timed(run: Callable[[], object]) -> float:
    began = time.monotonic()
    run()
    return time.monotonic() - began


def as_plain_spark(session: Session, table: Table, place: Path) -> float:
    """Seconds of the table's function over the stored rows of its inputs, written as Parquet."""
    inputs = {}
    for name in table.inputs:
        rows = session.read(session.catalog.table(name)).drop(KEY, PARTITION, ORIGIN)
        if table.window and session.catalog.table(name) in session.catalog.timed_inputs(table):
            event_time = session.catalog.time_column(session.catalog.table(name))
            rows = lateness.accepted(lateness.flagged(rows, table, event_time), late_too=True)
        inputs[name] = rows
    return timed(lambda: table(**inputs).write.parquet(str(place)))


def _seconds(progress: Sequence) -> list[float]:
    """Of each step with rows, from the look for news to the commit."""
    spent = (
        p.durationMs.get("triggerExecution") or p.durationMs.get("addBatch", 0)
        for p in progress
        if p.numInputRows
    )
    return [milliseconds / 1000 for milliseconds in spent]


def measured(stage: Stage, only: Sequence[str], steps: Iterator[Sequence[Record]]) -> list[Found]:
    session, ahead = stage.session, list(steps)
    chosen = [
        t
        for t in session.catalog
        if session.catalog.kind(t) not in ("ingest", "reference") and (not only or t.name in only)
    ]
    catching = {
        t.name: timed(lambda t=t: queries.start(session, t, available_now=True).awaitTermination())
        for t in chosen
    }
    plain = {
        t.name: as_plain_spark(session, t, session.settings.root / "plain" / t.name) for t in chosen
    }
    running = {t.name: queries.start(session, t) for t in chosen}
    for records in ahead:
        feed(stage, records)
        for query in running.values():  # inputs first
            query.processAllAvailable()
    took = {name: _seconds(query.recentProgress) for name, query in running.items()}
    for query in running.values():
        query.stop()
    close(stage)
    stage.run(*(t.name for t in chosen))
    for t in chosen:
        certificate = reconciliation.reconcile(session, t)
        if certificate.verdict != "EQUAL":
            raise BenchmarkError(f"table={t.name}: {certificate.verdict}: {certificate.detail}")
    return [
        Found(t.name, catching[t.name], plain[t.name], took[t.name], stage.rows(t.name).count())
        for t in chosen
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--step", type=int, default=1_000, help="events of a step")
    parser.add_argument(
        "--only", nargs="*", default=[], help="these tables alone; name those that they read, too"
    )
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="nexmark"))
    try:
        with spark_session.opened(from_environment(), "nexmark") as spark:
            stage = Stage(spark, root, tables, fresh_within="10 milliseconds")
            sent = producer.records(Workload(rate=1_000, partitions=2), START)
            for _ in range(4):
                feed(stage, list(islice(sent, given.events // 4)))
            more = (list(islice(sent, given.step)) for _ in range(given.steps))
            found = measured(stage, given.only, more)
        shown = Shown(box=box.MARKDOWN)
        for column in (
            "table",
            "events/s",
            "plain Spark: seconds / ours",
            "a step, seconds",
            "rows",
        ):
            shown.add_column(column, justify="left" if column == "table" else "right")
        for each in found:
            step = f"{median(each.steps):.2f} ({max(each.steps):.2f})" if each.steps else "–"
            rate, ratio = (
                f"{given.events / each.catch_up:,.0f}",
                f"{each.plain / each.catch_up:.2f}",
            )
            shown.add_row(each.query, rate, ratio, step, f"{each.rows:,}")
        out().print(shown)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
