"""Windows of each engine, and a keyed table of each, over clicks of a topic that gives no further row."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    ingest_table,
    kafka,
    keyed_table,
    row_table,
    session,
    sliding,
    tumbling,
    window_table,
)
from lakehouse.declare.table import Table

START = datetime(2026, 1, 1, tzinfo=UTC)

click_topic = kafka("clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@row_table(layer="silver")
def of_ann(clicks: DataFrame) -> DataFrame:
    return clicks.where("user = 'ann'")


def _counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=tumbling("1 minute"), keys=["user"])
def by_minute(clicks: DataFrame) -> DataFrame:
    return _counted(clicks)


@window_table(layer="gold", window=tumbling("1 hour"), keys=["user"])
def by_hour(clicks: DataFrame) -> DataFrame:
    return _counted(clicks)


@window_table(layer="gold", window=sliding("40 minutes", "20 minutes"), keys=["user"])
def by_slide(clicks: DataFrame) -> DataFrame:
    return _counted(clicks)


@window_table(layer="gold", window=tumbling("1 day", zone="Asia/Kolkata"), keys=["user"])
def by_day(clicks: DataFrame) -> DataFrame:
    return _counted(clicks)


@window_table(layer="gold", window=session("15 minutes"), keys=["user"])
def visits(clicks: DataFrame) -> DataFrame:
    return _counted(clicks)


@window_table(layer="gold", window=tumbling("1 hour"), keys=["user"])
def hours_of_ann(of_ann: DataFrame) -> DataFrame:
    return _counted(of_ann)


@window_table(layer="gold", window=tumbling("2 hours"), keys=["user"])
def hours_of_hours(by_hour: DataFrame) -> DataFrame:
    return by_hour.groupBy("window", "user").agg(F.sum("clicks").alias("clicks"))


@keyed_table(layer="gold", keys=["user"])
def totals(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").agg(F.count("*").alias("clicks"))


@keyed_table(layer="gold", keys=["user"])
def moments(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").agg(F.max_by("at", "at").alias("moments"))


TABLES = [each.name for each in globals().copy().values() if isinstance(each, Table)]


def at(minutes: float, user: str = "ann") -> dict:
    return {"user": user, "at": after(minutes).isoformat()}


def after(minutes: float, seconds: float = 0) -> datetime:
    return START + timedelta(minutes=minutes, seconds=seconds)
