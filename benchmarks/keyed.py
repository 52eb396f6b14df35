"""A record of keys and two tables that count them, for `benchmarks.state`."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, tumbling, window_table

key_topic = kafka("keys", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at")
def arrivals(key_topic: DataFrame) -> DataFrame:
    return key_topic


@window_table(layer="gold", window=tumbling("2 minutes"), keys=["id"])
def advancing(arrivals: DataFrame) -> DataFrame:
    return arrivals.groupBy("window", "id").agg(F.count("*").alias("n"))


@window_table(layer="gold", window=tumbling("1 hour"), keys=["id"])
def growing(arrivals: DataFrame) -> DataFrame:
    return arrivals.groupBy("window", "id").agg(F.count("*").alias("n"))
