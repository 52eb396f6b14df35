"""Tables that tests declare otherwise."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    ingest_table,
    kafka,
    keyed_table,
    row_table,
    session,
    sql,
    tumbling,
    window_table,
)
from lakehouse.declare import catalog

START = datetime(2026, 1, 1, tzinfo=UTC)
_LEAST = 0

click_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@row_table(layer="silver")
def counted(clicks: DataFrame) -> DataFrame:
    return _above(clicks, _LEAST)


def _above(rows: DataFrame, least: int) -> DataFrame:
    return rows.where(F.col("value") > least)


@window_table(layer="gold", window=tumbling("1 hour"), keys=["user"])
def sums(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def ticks(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


@keyed_table(layer="gold", keys=["user"])
def totals(clicks: DataFrame) -> DataFrame:
    """Kept in Spark's state: a sum that may overflow is not one of its parts."""
    return clicks.groupBy("user").agg(F.try_sum("value").alias("value"))


visits = window_table(layer="gold", window=session("10 minutes"), keys=["user"])(
    sql("visits", "SELECT window, user, count(*) AS n FROM {clicks} GROUP BY window, user")
)


def larger(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum(F.col("value") * 2).alias("value"))


def doubled(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").agg(F.sum(F.col("value") * 2).alias("value"))


def more(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > 5")


def at(minutes: float, user: str = "a", value: int = 1) -> dict:
    return {"user": user, "at": (START + timedelta(minutes=minutes)).isoformat(), "value": value}


def changed(known: catalog.Catalog, name: str, **changes: object) -> catalog.Catalog:
    """The catalogue with one table declared otherwise."""
    return replace(known, tables=known.tables | {name: replace(known.table(name), **changes)})
