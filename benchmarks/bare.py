"""The least that a script must do: topic -> parsed rows -> gold, nothing checked, nothing kept of where a row came from.

    python -m benchmarks.bare

Not the same work as ours: here to show what a checked record costs.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import plain
from benchmarks.handwritten import SCHEMA, views


def events(spark: SparkSession, servers: str, per_trigger: int) -> DataFrame:
    records = plain.records(spark, servers, per_trigger)
    parsed = records.select(
        F.from_json(F.col("value").cast("string"), SCHEMA).alias("event")
    ).select("event.*")
    return parsed.withColumn("event_time", F.timestamp_millis(F.col("event_time").cast("bigint")))


if __name__ == "__main__":
    sys.exit(plain.run("bare", events, views))
