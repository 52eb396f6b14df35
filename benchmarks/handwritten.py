"""The ads pipeline as one writes it by Spark's documentation: topic -> bronze -> gold, two streaming queries.

    python -m benchmarks.handwritten [--live]        (root and broker from the environment, as everywhere)

Bronze holds the rows that our record holds: whole ones only, each with its position in the topic and its time of
arrival, partitioned by the hour of it. Rows that are not whole are dropped, where ours puts them aside; there is no
watermark kept, no count, no frontier. Session, cores, memory, triggers and Delta's settings are those of our own job.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import plain

SCHEMA = """user_id STRING, page_id STRING, ad_id STRING, ad_type STRING, event_type STRING, event_time STRING,
            ip_address STRING"""
POSITION = ("topic", "partition", "offset")


def events(spark: SparkSession, servers: str, per_trigger: int) -> DataFrame:
    records = plain.records(spark, servers, per_trigger)
    event = F.from_json(F.col("value").cast("string"), SCHEMA).alias("event")
    return whole(records.select(event, *POSITION).select("event.*", *POSITION))


def whole(parsed: DataFrame) -> DataFrame:
    """What both plain scripts make of parsed rows."""
    rows = parsed.withColumn(
        "event_time", F.timestamp_millis(F.col("event_time").try_cast("bigint"))
    )
    kept = rows.where("ad_id IS NOT NULL AND event_type IS NOT NULL AND event_time IS NOT NULL")
    now = F.current_timestamp()
    return kept.withColumns({"arrived": now, plain.PARTITION: F.date_format(now, "yyyy-MM-dd-HH")})


def views(spark: SparkSession, bronze: str, campaigns: str) -> DataFrame:
    ads = (
        spark.read.option("header", True).schema("ad_id STRING, campaign_id STRING").csv(campaigns)
    )
    rows = spark.readStream.format("delta").load(bronze).withWatermark("event_time", "1 second")
    seen = rows.where("event_type = 'view'").join(F.broadcast(ads), "ad_id")
    return seen.groupBy(F.window("event_time", "10 seconds"), "campaign_id").agg(
        F.count("*").alias("views")
    )


if __name__ == "__main__":
    sys.exit(plain.run("hand-written", events, views))
