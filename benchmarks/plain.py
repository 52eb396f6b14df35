"""What the two plain scripts share: our session, two queries one after the other (or beside each other, live)."""

import argparse
import signal
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment
from lakehouse.stopping import Stop

_TRIGGER = "500 milliseconds"

CAMPAIGNS = str(files("lakehouse.examples.ads").joinpath("ad_campaigns.csv"))
WATERMARK = "watermark"  # the file that tells how far the gold table is complete
PARTITION = "hour"  # of the bronze table: the hour of arrival
READY = "ready"  # the file that appears when both queries run


def gold(root: Path) -> Path:
    return root / "gold"


def batch(root: Path) -> Path:
    return root / "plain_batch"


def bronze(root: Path) -> Path:
    return root / "bronze"


def records(spark: SparkSession, servers: str, per_trigger: int, **options: str) -> DataFrame:
    """The topic as a stream of raw records."""
    return (
        spark.readStream.format("kafka")
        .options(**options)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "ad-events")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_trigger)
        .load()
    )


def run(name: str, events: Callable[..., DataFrame], views: Callable[..., DataFrame]) -> int:
    """Runs the script: up to the present, or with `--live` until SIGTERM. Returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--live", action="store_true", help="until SIGTERM; else up to the present")
    live, settings = parser.parse_args().live, from_environment()
    stopping = Stop()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    spark = spark_session.create(settings, name)
    # as our own tables have it; Delta's default is 10
    spark.conf.set("spark.databricks.delta.properties.defaults.checkpointInterval", "50")
    rows = events(spark, settings.bootstrap_servers, settings.max_offsets_per_trigger)
    empty = spark.createDataFrame([], rows.schema).write.format("delta")
    _partitioned(empty, rows).save(str(bronze(settings.root)))
    first = _start(rows, bronze(settings.root), settings, live)
    if not live:
        first.awaitTermination()
    counted = views(spark, str(bronze(settings.root)), CAMPAIGNS)
    second = _start(counted, gold(settings.root), settings, live)
    if live:
        (settings.root / READY).touch()
        while not stopping.wait(1):
            pass
        first.processAllAvailable()
        first.stop()
        second.processAllAvailable()
        second.stop()
    second.awaitTermination()
    (settings.root / WATERMARK).write_text(second.lastProgress.eventTime["watermark"])
    spark.stop()
    return 0


def _start(rows: DataFrame, table: Path, settings: Settings, live: bool) -> StreamingQuery:
    writer = _partitioned(
        rows.writeStream.format("delta").option("checkpointLocation", f"{table}_checkpoint"), rows
    )
    trigger = {"processingTime": _TRIGGER} if live else {"availableNow": True}
    return writer.trigger(**trigger).start(str(table))


def _partitioned(writer, rows: DataFrame):
    return writer.partitionBy(PARTITION) if PARTITION in rows.columns else writer
