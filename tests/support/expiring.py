"""A shop: keyed tables whose rows count for a minute."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, keyed_table, tumbling, window_table

START = datetime(2026, 1, 1, tzinfo=UTC)
TTL = timedelta(minutes=1)

sale_topic = kafka(
    "sales",
    schema="item BIGINT NOT NULL, buyer BIGINT NOT NULL, at TIMESTAMP NOT NULL",
    quiet_timeout="2 seconds",
)
view_topic = kafka(
    "views", schema="item BIGINT NOT NULL, at TIMESTAMP NOT NULL", quiet_timeout="2 seconds"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def sales(sale_topic: DataFrame) -> DataFrame:
    return sale_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def views(view_topic: DataFrame) -> DataFrame:
    return view_topic


@keyed_table(layer="gold", keys=["item"], ttl=TTL)
def sold(sales: DataFrame) -> DataFrame:
    """One aggregate, whose state Spark would keep without the ttl."""
    return sales.groupBy("item").agg(F.count("*").alias("sales"), F.max("at").alias("last"))


@keyed_table(layer="gold", keys=["sales"])
def items(sold: DataFrame) -> DataFrame:
    """What goes out of the table before goes out of this one."""
    return sold.groupBy("sales").agg(F.count("*").alias("items"))


@keyed_table(layer="gold", keys=["item"], ttl=TTL)
def interest(views: DataFrame, sales: DataFrame) -> DataFrame:
    """A join without a bound but the ttl."""
    seen = views.groupBy("item").agg(F.count("*").alias("views"))
    bought = sales.groupBy("item").agg(F.count_distinct("buyer").alias("buyers"))
    return seen.join(bought, "item", "full")


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["item"])
def by_ten_seconds(sales: DataFrame) -> DataFrame:
    return sales.groupBy("window", "item").agg(F.count("*").alias("sales"))


@keyed_table(layer="gold", keys=["item"], ttl=TTL)
def best(by_ten_seconds: DataFrame) -> DataFrame:
    """Over results of windows."""
    return by_ten_seconds.groupBy("item").agg(F.max("sales").alias("most"))


@keyed_table(layer="gold", keys=["minute"], ttl=TTL)
def by_minute(sales: DataFrame) -> DataFrame:
    """By the minute of the event time, of which rows expire one by one."""
    minute = F.date_trunc("minute", "at").alias("minute")
    return sales.groupBy(minute).agg(F.count("*").alias("sales"))


def sale(item: int, seconds: float, buyer: int = 1) -> dict:
    return {"item": item, "buyer": buyer, "at": at(seconds)}


def view(item: int, seconds: float) -> dict:
    return {"item": item, "at": at(seconds)}


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()
