"""A record of keys and two tables that count them, for `benchmarks.state`."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.table import kafka, table, tumbling

key_topic = kafka("keys", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


@table(layer="bronze", event_time="at")
def arrivals(key_topic: DataFrame) -> DataFrame:
    return key_topic


@table(layer="gold", window=tumbling("2 minutes"), keys=["id"])
def advancing(arrivals: DataFrame) -> DataFrame:
    return arrivals.groupBy("window", "id").agg(F.count("*").alias("n"))


@table(layer="gold", window=tumbling("1 hour"), keys=["id"])
def growing(arrivals: DataFrame) -> DataFrame:
    return arrivals.groupBy("window", "id").agg(F.count("*").alias("n"))
