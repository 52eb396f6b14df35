"""Fills a table of `benchmarks.keyed` commit by commit and writes down what its state did.

    python -m benchmarks.state_run TABLE COMMITS KEYS_A_COMMIT RESULT

Each commit of the record holds other keys, two minutes (`advancing`: then closed) or a second (`growing`: all in one hour) after
the commit before. RESULT: a JSON object of what `benchmarks.state.State` holds.
"""

import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks import keyed
from lakehouse.ranges import BEGINNING
from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.position import table_state
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.engines import ingest
from lakehouse.stream.micro_batch import BatchLog, stream_run
from lakehouse.stream.reading.raw_records import raw_records
from lakehouse.testing import Stage

START = datetime(2026, 1, 1, tzinfo=UTC)


def fill(session: Session, commits: int, keys: int, step: timedelta) -> None:
    """As many commits of as many keys; then two whose time closes every window."""
    run = stream_run(session, table_state.read(session, session.catalog.table("arrivals")))
    times = [START + step * n for n in range(commits)] + [START + timedelta(days=n) for n in (1, 2)]
    for n, at in enumerate(times):
        batch = records(
            session,
            range(n * keys, (n + 1) * keys) if n < commits else range(-n, 1 - n),
            at,
            n * keys,
        )
        log = BatchLog(BEGINNING, datetime.now(UTC), {"keys": {"0": (n + 1) * keys}})
        ingest.ingest_batch(run, raw_records(run, {"key_topic": batch}), n, log)


def records(session: Session, ids: range, at: datetime, offset: int) -> DataFrame:
    # numbers in order would be compressed to next to nothing
    key = F.sha2(F.col("id").cast("string"), 256).alias("id")
    value = F.to_json(F.struct(key, F.lit(at.isoformat()).alias("at"))).cast("binary")
    return session.spark.range(ids.start, ids.stop, 1, 1).select(
        F.lit(None).cast("binary").alias("key"),
        value.alias("value"),
        F.lit(0).alias("partition"),
        (F.col("id") - ids.start + offset).alias("offset"),
        F.lit(START + timedelta(days=3)).alias("timestamp"),
    )


def measured(session: Session, name: str) -> dict[str, object]:
    """Runs the table's query over all of it, a file a micro-batch, and tells what its progress says."""
    table = session.catalog.table(name)
    began, jvm = (
        time.monotonic(),
        psutil.Process(session.spark._jvm.java.lang.ProcessHandle.current().pid()),
    )
    query = queries.start(session, table, available_now=True)
    resident = []
    while not query.awaitTermination(1):
        resident.append(jvm.memory_info().rss)
    seconds = time.monotonic() - began
    states = [p.stateOperators[0] for p in query.recentProgress if p.stateOperators]
    keys, total = session.read(table).agg(F.count_distinct("id"), F.sum("n")).head()
    return {
        "rows": [s.numRowsTotal for s in states],
        "memory": [s.memoryUsedBytes for s in states],
        "files": [s.customMetrics["rocksdbSstFileSize"] for s in states],
        "resident": resident or [jvm.memory_info().rss],
        "seconds": seconds,
        "keys": keys,
        "counted": total,
        "dropped": sum(s.numRowsDroppedByWatermark for s in states),
    }


if __name__ == "__main__":
    name, commits, keys, result = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    settings: Settings = from_environment()
    spark = spark_session.create(
        replace(settings, spark_conf={"spark.sql.streaming.numRecentProgressUpdates": "100000"}),
        "state",
    )
    stage = Stage(spark, settings.root, keyed, max_files_per_trigger=1)
    fill(stage.session, commits, keys, timedelta(seconds=120 if name == "advancing" else 1))
    result.write_text(json.dumps(measured(stage.session, name)))
    spark.stop()
