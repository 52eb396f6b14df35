"""Tables whose topics may be silent (`quiet_timeout`), and one that reads a topic that may not."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, row_table, session, tumbling, window_table

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "user STRING NOT NULL, at TIMESTAMP NOT NULL"

click_topic = kafka("clicks", schema=SCHEMA, quiet_timeout="2 seconds")
still_topic = kafka("still", schema=SCHEMA)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@row_table(layer="silver")
def of_ann(clicks: DataFrame) -> DataFrame:
    return clicks.where("user = 'ann'")


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def by_ten_seconds(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=tumbling("1 hour"))
def by_hour(of_ann: DataFrame) -> DataFrame:
    return of_ann.groupBy("window").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=session("1 minute"), keys=["user"])
def sessions(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def still_too(click_topic: DataFrame, still_topic: DataFrame) -> DataFrame:
    return click_topic.unionByName(still_topic)


TABLES = ["of_ann", "by_ten_seconds", "by_hour", "sessions"]


def at(seconds: float, user: str = "ann") -> dict:
    return {"user": user, "at": (START + timedelta(seconds=seconds)).isoformat()}


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)
