"""What the two plain scripts share: our session, two queries one after the other (or beside each other, live)."""

import argparse
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakehouse import session
from lakehouse.settings import Settings, from_environment

CAMPAIGNS = str(files("lakehouse").joinpath("tables/ad_campaigns.csv"))
WATERMARK = "watermark"  # the file that tells how far the gold table is complete


def gold(root: Path) -> Path:
    return root / "gold"


def bronze(root: Path) -> Path:
    return root / "bronze"


def run(name: str, events: Callable[..., DataFrame], views: Callable[..., DataFrame]) -> int:
    """Runs the script: up to the present, or live for so many seconds. Returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--live", type=float, default=0.0, metavar="SECONDS")
    seconds = parser.parse_args().live
    settings = from_environment()
    spark = session.create(settings, name)
    # as our own tables have it; Delta's default is 10
    spark.conf.set("spark.databricks.delta.properties.defaults.checkpointInterval", "50")
    rows = events(spark, settings.bootstrap_servers, settings.max_offsets_per_trigger)
    first = _start(rows, bronze(settings.root), settings, live=bool(seconds))
    if seconds:
        _await_table(bronze(settings.root), first)
    else:
        first.awaitTermination()
    counted = views(spark, str(bronze(settings.root)), CAMPAIGNS)
    second = _start(counted, gold(settings.root), settings, live=bool(seconds))
    if seconds:
        time.sleep(seconds)
        first.stop()
        second.processAllAvailable()
        second.stop()
    else:
        second.awaitTermination()
    (settings.root / WATERMARK).write_text(second.lastProgress.eventTime["watermark"])
    spark.stop()
    return 0


def _start(rows: DataFrame, table: Path, settings: Settings, live: bool) -> StreamingQuery:
    writer = rows.writeStream.format("delta").option("checkpointLocation", f"{table}_checkpoint")
    trigger = {"processingTime": settings.trigger} if live else {"availableNow": True}
    return writer.trigger(**trigger).start(str(table))


def _await_table(table: Path, query: StreamingQuery) -> None:
    while not list(table.glob("_delta_log/*.json")):
        if query.exception() is not None:
            raise RuntimeError("the bronze query ended") from query.exception()
        time.sleep(0.1)
