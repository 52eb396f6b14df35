"""Tables whose ingest table reads two topics."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, tumbling, window_table

START = datetime(2026, 1, 1, tzinfo=UTC)

web_topic = kafka(
    "web", schema="customer STRING NOT NULL, at TIMESTAMP NOT NULL", idle_timeout="4 seconds"
)
till_topic = kafka(
    "tills", schema="card STRING NOT NULL, sold_ms BIGINT NOT NULL", idle_timeout="4 seconds",
    min_event_time=datetime(2025, 1, 1, tzinfo=UTC),
)  # fmt: skip


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def purchases(web_topic: DataFrame, till_topic: DataFrame) -> DataFrame:
    sold = (
        till_topic.withColumnRenamed("card", "customer")
        .withColumn("at", F.timestamp_millis("sold_ms"))
        .drop("sold_ms")
    )
    return web_topic.unionByName(sold)


@window_table(layer="gold", window=tumbling("10 seconds"))
def purchase_counts(purchases: DataFrame) -> DataFrame:
    return purchases.groupBy("window").agg(F.count("*").alias("purchases"))


def web(*seconds: int) -> list[dict]:
    return [{"customer": "w", "at": (START + timedelta(seconds=s)).isoformat()} for s in seconds]


def till(*seconds: int) -> list[dict]:
    return [
        {"card": "t", "sold_ms": int((START + timedelta(seconds=s)).timestamp() * 1000)}
        for s in seconds
    ]
