"""A record of accounts, their state, what of it expires, and their history, for `benchmarks.keyed_step`."""

from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, keyed_table, versioned_table

TTL, DELAY = timedelta(hours=1), timedelta(seconds=5)

movement_topic = kafka(
    "movements",
    schema="account STRING NOT NULL, amount DECIMAL(9,2) NOT NULL, city STRING NOT NULL, at TIMESTAMP NOT NULL",
)


@ingest_table(layer="bronze", event_time="at", delay=DELAY)
def movements(movement_topic: DataFrame) -> DataFrame:
    return movement_topic


@keyed_table(layer="gold", keys=["account"])
def balances(movements: DataFrame) -> DataFrame:
    """What each account has."""
    return movements.groupBy("account").agg(
        F.sum("amount").alias("balance"), F.count("*").alias("movements")
    )


@keyed_table(layer="gold", keys=["account"])
def moved_and_left(movements: DataFrame, balances: DataFrame) -> DataFrame:
    """The greatest movement of each account beside what it has: a join without a bound, of rows and of keys."""
    greatest = movements.groupBy("account").agg(F.max("amount").alias("greatest"))
    return greatest.join(balances, "account").where("greatest < balance OR movements = 1")


@keyed_table(layer="gold", keys=["account"], ttl=TTL)
def moved_lately(movements: DataFrame) -> DataFrame:
    """What has moved of each account in the last hour; the accounts of which nothing has are not there."""
    return movements.groupBy("account").agg(
        F.sum("amount").alias("moved"), F.count("*").alias("movements")
    )


@versioned_table(layer="silver", keys=["account"])
def cities(movements: DataFrame) -> DataFrame:
    """Where each account was."""
    return movements.select("account", "city", "amount", "at", "_arrival")
