"""The same as a plain Spark batch job over the same bronze table: read a range, window, join, count, replace the range.

python -m benchmarks.batch_plain HOURS TIMES RESULT
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks import check, plain, repeated
from lakehouse.ranges import Range
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment


def job(spark: SparkSession, bronze: str, gold: str, span: Range) -> None:
    ads = (
        spark.read.option("header", True)
        .schema("ad_id STRING, campaign_id STRING")
        .csv(plain.CAMPAIGNS)
    )
    start, end = F.lit(span.start), F.lit(span.end)
    rows = (
        spark.read.format("delta")
        .load(bronze)
        .where((F.col("event_time") >= start) & (F.col("event_time") < end))
    )
    seen = rows.where("event_type = 'view'").join(F.broadcast(ads), "ad_id")
    counted = seen.groupBy(F.window("event_time", "10 seconds"), "campaign_id").agg(
        F.count("*").alias("views")
    )
    by_hour = counted.withColumn("hour", F.date_format("window.start", "yyyy-MM-dd-HH"))
    wanted = ", ".join(repr(p) for p in span.partitions("hour"))
    writer = by_hour.write.format("delta").mode("overwrite").partitionBy("hour")
    writer.option("replaceWhere", f"hour IN ({wanted})").save(gold)


if __name__ == "__main__":
    settings = from_environment()
    spark = spark_session.create(settings, "plain batch")
    bronze, gold = str(check.ours(settings).bronze), str(plain.batch(settings.root))
    span = repeated.hours(int(sys.argv[1]))
    repeated.measured(lambda: job(spark, bronze, gold, span), int(sys.argv[2]), sys.argv[3])
    spark.stop()
