"""A pipeline of two topics: what was shown, what was sold, both joined in windows, united, and counted by the hour."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import around, ingest_table, kafka, row_table, tumbling, window_table

ad_topic = kafka(
    "shown-ads", schema="ad BIGINT NOT NULL, at TIMESTAMP NOT NULL", quiet_timeout="5 seconds"
)
sale_topic = kafka(
    "sales",
    schema="ad BIGINT NOT NULL, at TIMESTAMP NOT NULL, price BIGINT",
    quiet_timeout="5 seconds",
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def ads(ad_topic: DataFrame) -> DataFrame:
    return ad_topic


@ingest_table(layer="bronze", event_time="at", delay="20 seconds")
def sales(sale_topic: DataFrame) -> DataFrame:
    return sale_topic


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["ad"])
def by_window(ads: DataFrame, sales: DataFrame) -> DataFrame:
    shown = ads.groupBy("window", "ad").agg(F.count("*").alias("shown"))
    sold = sales.groupBy("window", "ad").agg(F.sum("price").alias("turnover"))
    return shown.join(sold, ["window", "ad"], "full").na.fill(0)


@window_table(layer="gold", window=tumbling("1 hour"))
def by_hour(by_window: DataFrame) -> DataFrame:
    sums = (F.sum(name).alias(name) for name in ("shown", "turnover"))
    return by_window.groupBy("window").agg(*sums)


@row_table(layer="silver", context=around(before="3 seconds"))
def sold_after(sales: DataFrame, ads: DataFrame) -> DataFrame:
    """Each sale with each time that its ad was shown in the three seconds before."""
    shown = ads.select(F.col("ad").alias("of"), F.col("at").alias("shown"))
    near = F.expr("of = ad AND shown <= at AND shown >= at - interval 3 seconds")
    return sales.join(shown, near).drop("of")


@row_table(layer="silver")
def events(ads: DataFrame, sales: DataFrame) -> DataFrame:
    columns = ["ad", "at", "_arrival"]
    shown, sold = ads.select(*columns), sales.select(*columns)
    return shown.withColumn("sold", F.lit(False)).unionByName(sold.withColumn("sold", F.lit(True)))
