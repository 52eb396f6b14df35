"""Readings of sites of which some are slow: their watermark by partition alone, by site, and by site with a marker."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, tumbling, window_table

site_topic = kafka("sites", schema="site STRING, at TIMESTAMP NOT NULL, is_end BOOLEAN")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds", watermark_by="site")
def readings(site_topic: DataFrame) -> DataFrame:
    return site_topic


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def plain_readings(site_topic: DataFrame) -> DataFrame:
    return site_topic


@ingest_table(
    layer="bronze", event_time="at", delay="5 seconds", marker="is_end", watermark_by="number"
)
def ended_readings(site_topic: DataFrame) -> DataFrame:
    return site_topic.withColumn("number", F.length("site"))


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["site"])
def by_site(readings: DataFrame) -> DataFrame:
    return readings.groupBy("window", "site").agg(F.count("*").alias("readings"))


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["site"])
def plainly_by_site(plain_readings: DataFrame) -> DataFrame:
    return plain_readings.groupBy("window", "site").agg(F.count("*").alias("readings"))
