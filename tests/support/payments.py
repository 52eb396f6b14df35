"""Keyed and versioned tables of payments between people, and what they read."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, keyed_table, row_table, versioned_table
from lakehouse.testing import Stage
from lakehouse.transform.versions import as_of_join

START = datetime(2026, 1, 1, tzinfo=UTC)

payment_topic = kafka(
    "payments", schema="payer STRING NOT NULL, payee STRING NOT NULL, amount DECIMAL(9,2) NOT NULL, at TIMESTAMP NOT NULL"
)  # fmt: skip
person_topic = kafka(
    "people",
    schema="person STRING NOT NULL, city STRING NOT NULL, at TIMESTAMP NOT NULL",
    key="person",
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def happened(payment_topic: DataFrame, person_topic: DataFrame) -> DataFrame:
    people = (
        person_topic.withColumn("at", F.coalesce("at", "sent"))
        .drop("sent")
        .withColumn("kind", F.lit("person"))
    )
    return payment_topic.withColumn("kind", F.lit("payment")).unionByName(
        people, allowMissingColumns=True
    )


@keyed_table(layer="gold", keys=["person"])
def balances(happened: DataFrame) -> DataFrame:
    legs = F.explode(F.array(
        F.struct(F.col("payer").alias("person"), (-F.col("amount")).alias("amount")),
        F.struct(F.col("payee").alias("person"), F.col("amount")),
    ))  # fmt: skip
    paid = happened.where("kind = 'payment'").select(legs.alias("leg")).select("leg.*")
    return paid.groupBy("person").agg(
        F.sum("amount").alias("balance"), F.count("*").alias("payments")
    )


@versioned_table(layer="silver", keys=["person"])
def cities(happened: DataFrame) -> DataFrame:
    return happened.where("kind = 'person'").select("person", "city", "deleted", "at", "_arrival")


@row_table(layer="silver")
def payments_with_city(happened: DataFrame, cities: DataFrame) -> DataFrame:
    payments = happened.where("kind = 'payment'").select("payer", "amount", "at", "_arrival")
    return as_of_join(payments, cities, on={"payer": "person"}, at="at", take=["city"])


@row_table(layer="silver")
def payments_by_all(happened: DataFrame, cities: DataFrame) -> DataFrame:
    """As rules are joined that hold for every row: each payment with all that was valid then."""
    payments = happened.where("kind = 'payment'").select("payer", "at", "_arrival")
    return as_of_join(payments, cities, on={}, at="at", take={"rule": "city"}).where(
        "rule IS NOT NULL"
    )


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def paid(second: float, payer: str = "a", payee: str = "b", amount: str = "1.00") -> dict:
    return {"payer": payer, "payee": payee, "amount": amount, "at": at(second).isoformat()}


def moved(second: float, person: str, city: str) -> dict:
    return {"person": person, "city": city, "at": at(second).isoformat()}


def pay(stage: Stage, *rows: dict, **given) -> None:
    stage.feed("happened", rows, source="payment_topic", **given)


def move(stage: Stage, *rows: dict | None, key: str = "a", **given) -> None:
    stage.feed("happened", rows, source="person_topic", key=key.encode(), **given)


def advance(stage: Stage, second: float) -> None:
    """Moves the watermark of both topics to that second."""
    for _ in range(2):
        pay(stage, paid(second + 5, "x", "y"))
        move(stage, moved(second + 5, "z", "Z"), key="z")


def balances_of(stage: Stage) -> dict[str, tuple[Decimal, int]]:
    return {
        r.person: (r.balance, r.payments)
        for r in stage.rows("balances").collect()
        if r.person in "abc"
    }


def versions_of(stage: Stage, person: str = "a") -> list[tuple]:
    rows = stage.rows("cities").where(F.col("person") == person).orderBy("valid_from").collect()
    found = ((r.city, r.valid_from, r.valid_to) for r in rows)
    return [
        (city, *((t.astimezone(UTC) - START).total_seconds() if t else None for t in span))
        for city, *span in found
    ]
