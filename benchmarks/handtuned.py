"""The ads pipeline in plain PySpark with every trick we know: the same hops, the same rows in bronze.

    python -m benchmarks.handtuned [--live]

Against `handwritten`: the JSON is parsed once (a generator keeps the optimiser from copying the parser into every
column), Kafka is asked for large fetches, Delta collects statistics of the one column that is searched by.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import plain
from benchmarks.handwritten import POSITION, SCHEMA, views, whole

_FETCHES = {
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.max.poll.records": "10000",
}


def events(spark: SparkSession, servers: str, per_trigger: int) -> DataFrame:
    spark.conf.set(
        "spark.databricks.delta.properties.defaults.dataSkippingStatsColumns", "event_time"
    )
    records = plain.records(spark, servers, per_trigger, **_FETCHES)
    event = F.inline(F.array(F.from_json(F.col("value").cast("string"), SCHEMA)))
    return whole(records.select(*POSITION, event))


def tuned_views(spark: SparkSession, bronze: str, campaigns: str) -> DataFrame:
    spark.conf.unset("spark.databricks.delta.properties.defaults.dataSkippingStatsColumns")
    return views(spark, bronze, campaigns)


if __name__ == "__main__":
    sys.exit(plain.run("hand-tuned", events, tuned_views))
