"""Windows over clicks of which some are marked: these alone say how far event time has come."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, session, tumbling, window_table

click_topic = kafka("clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds", marker="is_marker")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic.withColumn("is_marker", F.col("value") % 5 == 0)


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def by_ten_seconds(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=session("10 seconds"), keys=["user"])
def marked_sessions(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))
