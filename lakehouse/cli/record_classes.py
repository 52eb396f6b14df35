"""What the archives of Spark's and Kafka's classes (`runtime.cds_archive`) are recorded from: a small run of everything."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakehouse.examples import producer
from lakehouse.examples.ads import tables as ads
from lakehouse.examples.sensors import tables as sensors
from lakehouse.producers.sender import send
from lakehouse.ranges import parse_range
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import cds_archive, jars, kafka_broker, spark_session
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage import delta_log
from lakehouse.stream import early_results, queries
from lakehouse.testing import Stage


def _record(spark_to: Path, kafka_to: Path) -> None:
    """Fills the tables of `sensors` by streams and a batch run, and those of `ads` from a topic, then ends the JVMs.

    As they end they write their archives.
    """
    with tempfile.TemporaryDirectory() as folder:
        recording = {"spark.driver.extraJavaOptions": cds_archive.recording(spark_to)}
        settings = Settings(root=Path(folder), jars=from_environment().jars, spark_conf=recording)
        spark = spark_session.create(settings, "class data", ui=True)
        stage = Stage(spark, Path(folder), sensors)
        first, last = (
            {"sensor_id": "a", "event_time": f"2026-01-01T0{hour}:00:00Z", "temperature_f": "50.00"}
            for hour in (0, 2)
        )
        stage.feed("sensor_readings", [first, b"bad"])
        stage.advance("sensor_readings", last)
        stage.run("valid_readings", "sensor_averages")
        # else it would write nothing
        delta_log.open_table(
            stage.session.path(stage.session.catalog.table("valid_readings"))
        ).delete()
        stage.backfill("valid_readings", parse_range("2026-01-01T00:00", "2026-01-01T01:00"))
        reconciliation.reconcile(stage.session, stage.session.catalog.table("valid_readings"))
        _from_topic(spark, Path(folder, "topic"), kafka_to)
        gateway: Any = SparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def _from_topic(spark: SparkSession, root: Path, kafka_to: Path) -> None:
    """Fills the tables of `ads` from a topic of a broker of its own, with early results: what only a job does."""
    settings, made = Settings(root=root), producer("ads")
    try:
        servers = kafka_broker.start(
            settings, jars.resolve(from_environment().jars), [cds_archive.recording(kafka_to)]
        ).bootstrap_servers
        stage = Stage(spark, root, ads, bootstrap_servers=servers)
        record, views = (
            stage.session.catalog.table(name) for name in ("ad_events", "campaign_views")
        )
        kafka_broker.ensure_topics(stage.session.settings, {made.topic: made.workload.partitions})
        now = int(time.time() * 1000)
        # milliseconds: a window closes by what is recorded after its last row
        for ago in (
            120_000,
            60_000,
        ):
            send(
                made.records(made.workload, now - ago, now - ago + 1_000),
                made.topic,
                client_config(stage.session.settings),
            )
            queries.start(stage.session, record, available_now=True).awaitTermination()
        stage.run(views.name)
        early_results.settle(stage.session, views)
    finally:
        kafka_broker.stop(settings)


if __name__ == "__main__":
    if sys.argv[1:]:
        _record(*map(Path, sys.argv[1:]))
    elif not all(map(cds_archive.options, cds_archive.PROGRAMS)):
        print("archiving Spark's and Kafka's classes, so that they start faster (once)", flush=True)
        if not cds_archive.make():
            print(
                "that did not succeed; everything works, and starts some seconds later",
                file=sys.stderr,
            )
