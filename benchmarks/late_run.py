"""The pipeline `ads` again and again in one process: as it is, without the gate, and with late rows merged.

    python -m benchmarks.late_run EVENTS BATCHES ROUNDS SERVERS SERVERS_OF_LATE RESULT

A process of their own for each would hide what is looked for, a few parts in a hundred, behind its start-up. RESULT: a JSON
object, case -> a list of rounds, each [wall, CPU] of the record and [wall, CPU] of what follows it. Of several rounds there is
one more, the first, which warms up and is left out.

Without the gate no row's window is compared with its stored watermark, and none is counted as late: right as long as nothing
is late. That watermark is still stored, and windows are closed by it.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import psutil
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from batch_jobs import update
from benchmarks import check, topic
from benchmarks.late_rows import SHARE, UPDATED, WITHOUT
from benchmarks.measure import BenchmarkError, Cost, Tree
from benchmarks.topic import HOUR_MS, Load
from lakehouse.batch import reference_tables
from lakehouse.declare import catalog
from lakehouse.declare.columns import WINDOW
from lakehouse.declare.table import Table
from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.transform import lateness


def flagged(rows: DataFrame, table: Table, moment: str) -> DataFrame:
    return (
        rows
        if table.window is None
        else rows.withColumn(WINDOW, lateness._assigned(table.window, moment))
    )


def counts(table: Table, moment: str) -> list[Column]:
    nothing = F.max(F.lit(None).cast("bigint"))
    arrived, late = F.count(F.lit(1)).alias("arrived"), F.count(F.lit(None)).alias("late")
    return [arrived, late, *(nothing.alias(name) for name in ("watermark", "late_from", "late_to"))]


def accepted(rows: DataFrame, *, late_too: bool = False) -> DataFrame:
    return rows.drop(lateness._WATERMARK)


@contextmanager
def without_gate() -> Iterator[None]:
    own = {name: getattr(lateness, name) for name in ("flagged", "counts", "accepted")}
    lateness.flagged, lateness.counts, lateness.accepted = flagged, counts, accepted
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(lateness, name, function)


def filled(spark: SparkSession, settings: Settings) -> tuple[Cost, Cost]:
    """What the record took, and what follows it: the windows and, where late rows are merged, the update."""
    session, tree = Session(settings, catalog.load(settings), spark), Tree(psutil.Process())
    references = [t for t in session.catalog if t.kind.is_reference]
    for table in references:
        reference_tables.rebuild(session, table)
    record, windows = (t for t in session.catalog if t not in references)
    queries.prepare(session, [record, windows])
    looks = [Cost(time.monotonic(), tree.cpu())]
    for table in (record, windows):
        queries.start(session, table, available_now=True).awaitTermination()
        if table.late == "update":
            list(update.run(session))
        looks.append(Cost(time.monotonic(), tree.cpu()))
    return looks[1] - looks[0], looks[2] - looks[1]


def checked(name: str, settings: Settings, load: Load, expected: topic.Views) -> None:
    """Raises BenchmarkError. What is updated is complete hour by hour."""
    written = check.ours(settings)
    if name != UPDATED:
        check.check(name, written, load.sent, expected, load.complete_ms)
        return
    check.check_rows(name, written, load.sent)
    if written.frontier_ms < load.complete_ms:
        raise BenchmarkError(f"{name}: its frontier ends before what it had to do; the run is void")
    closed = written.frontier_ms - written.frontier_ms % HOUR_MS
    check.compare(
        name, check.upto(check.read_views(written.gold), closed), check.upto(expected, closed)
    )


def main(events: int, batches: int, rounds: int, servers: str, of_late: str, result: Path) -> None:
    settings = from_environment()
    spark = spark_session.create(settings, "late")
    clean, late = (topic.loads(events, batches, share)[-1] for share in (0.0, SHARE))
    sent = {load: load.expected() for load in (clean, late)}
    cases = {"ours": (clean, servers), WITHOUT: (clean, servers), UPDATED: (late, of_late)}
    found: dict[str, list] = {name: [] for name in cases}
    for number in range(-1 if rounds > 1 else 0, rounds):
        for name, (load, brokers) in cases.items():
            own = replace(
                settings,
                root=settings.root / f"round_{number}",
                bootstrap_servers=brokers,
                max_offsets_per_trigger=load.batch,
                tables=(
                    "benchmarks.updated_ads"
                    if name == UPDATED
                    else "lakehouse.examples.ads.tables",
                ),
            )
            with without_gate() if name == WITHOUT else nullcontext():
                costs = filled(spark, own)
            checked(name, own, load, sent[load])
            shutil.rmtree(own.root)
            if number >= 0:
                found[name].append([[cost.wall, cost.cpu] for cost in costs])
    result.write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    events, batches, rounds = (int(each) for each in sys.argv[1:4])
    servers, of_late, result = sys.argv[4:7]
    main(events, batches, rounds, servers, of_late, Path(result))
