"""A report of each hour, and one of each day, over rows that may come late."""

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, report_table, row_table, tumbling, window_table
from lakehouse.ranges import Range

sale_topic = kafka("sales", schema="shop STRING NOT NULL, cents BIGINT, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def sales(sale_topic: DataFrame) -> DataFrame:
    return sale_topic


@row_table(layer="silver", late="update")
def paid(sales: DataFrame) -> DataFrame:
    return sales.where("cents > 0")


@window_table(layer="silver", window=tumbling("10 minutes"), keys=["shop"], late="update")
def takings(paid: DataFrame) -> DataFrame:
    return paid.groupBy("window", "shop").agg(F.sum("cents").alias("cents"))


def page(rows: pa.Table, span: Range) -> str:
    lines = [f"{row['place']}. {row['shop']} {row['cents']}" for row in rows.to_pylist()]
    return "\n".join([f"from {span.start:%H:%M}", *lines])


@report_table(layer="gold", keys=["place"], suffix="txt", draw=page)
def best_shops(paid: DataFrame, takings: DataFrame) -> DataFrame:
    """The two shops with the highest takings, with the median of their sales and their best ten minutes."""
    sums = paid.groupBy("shop").agg(
        F.sum("cents").alias("cents"), F.percentile("cents", F.lit(0.5)).alias("median")
    )
    peaks = takings.groupBy("shop").agg(F.max("cents").alias("peak"))
    place = F.row_number().over(Window.orderBy(F.desc("cents"), "shop"))
    found = sums.join(peaks, "shop", "left").withColumn("place", place)
    return found.orderBy("place").limit(2)


@report_table(layer="gold", partition_by="day")
def day_total(paid: DataFrame) -> DataFrame:
    return paid.agg(
        F.count("*").alias("sales"), F.coalesce(F.sum("cents"), F.lit(0)).alias("cents")
    )
