"""A pipeline of ten tables: an ingest table, five row tables, three windows, and the latest row of each key."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    expect,
    ingest_table,
    kafka,
    keyed_table,
    row_table,
    sliding,
    tumbling,
    window_table,
)

PIPELINE = "ten_tables"
payment_topic = kafka(
    "ten-payments",
    schema="id BIGINT NOT NULL, account STRING NOT NULL, at TIMESTAMP NOT NULL, cents BIGINT NOT NULL",
)


@ingest_table(layer="bronze", event_time="at", delay="2 seconds")
def payments(payment_topic: DataFrame) -> DataFrame:
    return payment_topic


@row_table(layer="silver", expectations=[expect.column_values_to_be_between("cents", min_value=0)])
def valid_payments(payments: DataFrame) -> DataFrame:
    return payments.withColumn("amount", (F.col("cents") / 100).cast("decimal(12,2)"))


@row_table(layer="silver")
def large_payments(valid_payments: DataFrame) -> DataFrame:
    return valid_payments.where("cents > 90000")


@row_table(layer="silver")
def small_payments(valid_payments: DataFrame) -> DataFrame:
    return valid_payments.where("cents < 1000").withColumn("fee", F.lit(5).cast("bigint"))


@row_table(layer="silver")
def named_payments(valid_payments: DataFrame) -> DataFrame:
    return valid_payments.withColumn("name", F.concat(F.lit("account "), F.col("account")))


@row_table(layer="silver")
def rounded_payments(named_payments: DataFrame) -> DataFrame:
    return named_payments.withColumn("rounded", F.round("amount", 0)).drop("amount", "cents")


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["account"])
def account_sums(valid_payments: DataFrame) -> DataFrame:
    return valid_payments.groupBy("window", "account").agg(
        F.sum("cents").alias("cents"), F.count("*").alias("payments")
    )


@window_table(layer="gold", window=sliding("30 seconds", "10 seconds"), keys=["account"])
def account_peaks(valid_payments: DataFrame) -> DataFrame:
    return valid_payments.groupBy("window", "account").agg(F.max("cents").alias("largest"))


@window_table(layer="gold", window=tumbling("5 minutes"), keys=["account"])
def account_minutes(valid_payments: DataFrame) -> DataFrame:
    return valid_payments.groupBy("window", "account").agg(F.sum("cents").alias("cents"))


@keyed_table(layer="gold", keys=["account"])
def balances(payments: DataFrame) -> DataFrame:
    return payments.groupBy("account").agg(
        F.sum("cents").alias("cents"), F.count("*").alias("payments")
    )
