"""A pipeline for `test_processes`: as much memory as a message asks for."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, row_table

orders = kafka("orders", schema="at TIMESTAMP NOT NULL, size INT NOT NULL")


@ingest_table(layer="bronze", event_time="at")
def ordered(orders: DataFrame) -> DataFrame:
    return orders


@row_table(layer="silver")
def eaten(ordered: DataFrame) -> DataFrame:
    return ordered.withColumn("eaten", F.length(F.repeat(F.lit("x"), F.col("size"))))
