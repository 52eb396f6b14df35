"""Windows of an hour and totals by key, both with their state in Spark, for `benchmarks.keyed_stream`."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, keyed_table, tumbling, window_table

many_key_topic = kafka("many-keys", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="1 second")
def keyed_events(many_key_topic: DataFrame) -> DataFrame:
    return many_key_topic


@window_table(layer="gold", window=tumbling("1 hour"), keys=["id"])
def hourly(keyed_events: DataFrame) -> DataFrame:
    return keyed_events.groupBy("window", "id").agg(F.count("*").alias("n"))


@keyed_table(layer="gold", keys=["id"])
def totals(keyed_events: DataFrame) -> DataFrame:
    last = F.max_by("at", "at").alias(
        "last"
    )  # no sum or bound of its parts, so that Spark keeps the state
    return keyed_events.groupBy("id").agg(F.count("*").alias("n"), last)
