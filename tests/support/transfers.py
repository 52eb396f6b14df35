"""A bank in a database: tables that count a transfer when all of it is there, from one topic and from two."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    changes,
    ingest_table,
    keyed_table,
    row_table,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.testing import ChangeEvent, change_event

START = datetime(2026, 1, 1, tzinfo=UTC)
TTL = timedelta(seconds=20)

account_changes = changes(
    "bank.public.accounts",
    key="id",
    schema="id BIGINT, balance DECIMAL(12,2)",
    quiet_timeout="2 seconds",
)
debit_changes = changes(
    "bank.public.debits",
    key="number",
    schema="number BIGINT, account BIGINT, amount DECIMAL(12,2)",
    quiet_timeout="2 seconds",
)
credit_changes = changes(
    "bank.public.credits",
    key="number",
    schema="number BIGINT, account BIGINT, amount DECIMAL(12,2)",
    quiet_timeout="2 seconds",
)


@ingest_table(layer="bronze", event_time="sent", delay="2 seconds")
def account_log(account_changes: DataFrame) -> DataFrame:
    return account_changes


@keyed_table(layer="silver", keys=["id"], final_rows=True)
def accounts(account_log: DataFrame) -> DataFrame:
    """The database's table as it was at the frontier."""
    newest = F.max_by(F.struct("balance", "deleted"), "position").alias("row")
    rows = account_log.groupBy("id").agg(newest).select("id", "row.*")
    return rows.where("NOT deleted").drop("deleted")


@versioned_table(layer="silver", keys=["id"])
def account_versions(account_log: DataFrame) -> DataFrame:
    return account_log


@keyed_table(layer="gold", keys=["of"])
def total(accounts: DataFrame) -> DataFrame:
    """Over the table before: whole because that is."""
    return accounts.groupBy(F.lit("all").alias("of")).agg(F.sum("balance").alias("amount"))


@ingest_table(layer="bronze", event_time="sent", delay="2 seconds")
def debit_log(debit_changes: DataFrame) -> DataFrame:
    return debit_changes


@ingest_table(layer="bronze", event_time="sent", delay="2 seconds")
def credit_log(credit_changes: DataFrame) -> DataFrame:
    return credit_changes


def moved(debits: DataFrame, credits: DataFrame) -> DataFrame:
    out = debits.select("account", (-F.col("amount")).alias("amount"))
    return out.unionByName(credits.select("account", "amount"))


@keyed_table(layer="gold", keys=["account"], final_rows=True)
def movements(debit_log: DataFrame, credit_log: DataFrame) -> DataFrame:
    """What each account has gained, from two topics."""
    return moved(debit_log, credit_log).groupBy("account").agg(F.sum("amount").alias("amount"))


@keyed_table(layer="gold", keys=["of"], final_rows=True)
def net(debit_log: DataFrame, credit_log: DataFrame) -> DataFrame:
    """The same of all accounts, computed whole, for no column ties its row to rows of the inputs."""
    of_all = moved(debit_log, credit_log).groupBy(F.lit("all").alias("of"))
    return of_all.agg(F.sum("amount").alias("amount"), F.count("*").alias("rows"))


@keyed_table(layer="gold", keys=["account"], ttl=TTL, final_rows=True)
def recent(debit_log: DataFrame, credit_log: DataFrame) -> DataFrame:
    """What counts is bounded on both sides."""
    return moved(debit_log, credit_log).groupBy("account").agg(F.sum("amount").alias("amount"))


@row_table(layer="silver")
def large_debits(debit_log: DataFrame) -> DataFrame:
    return debit_log.where("amount > 2")


@window_table(layer="gold", window=tumbling("5 seconds"), keys=["account"])
def debits_by_window(debit_log: DataFrame) -> DataFrame:
    return debit_log.groupBy("window", "account").agg(F.sum("amount").alias("amount"))


@keyed_table(layer="gold", keys=["account"], final_rows=True)
def largest(large_debits: DataFrame, debits_by_window: DataFrame) -> DataFrame:
    """Over rows of a row table and results of windows."""
    rows = large_debits.groupBy("account").agg(F.max("amount").alias("debit"))
    windows = debits_by_window.groupBy("account").agg(F.max("amount").alias("in_window"))
    return rows.join(windows, "account", "full")


class Bank:
    """Three accounts and transfers between them, as the database logs them."""

    def __init__(self, random: Random) -> None:
        self.random, self.balances = random, dict.fromkeys((1, 2, 3), 50)
        self.at, self.place, self.number = START, 10, 0

    def reading(self) -> list[ChangeEvent]:
        """What Debezium reads when it begins."""
        return [
            change_event("r", row(n, 50), position=9, sent=START) for n in sorted(self.balances)
        ]

    def transfers(self, many: int, step: float = 1.5) -> Iterator[list[ChangeEvent]]:
        """Transfers, each as its two changes, which have one commit time."""
        for _ in range(many):
            self.at += timedelta(seconds=self.random.uniform(0.1, step))
            self.number += 1
            source, target = self.random.sample(sorted(self.balances), 2)
            self.balances[source] -= self.number
            self.balances[target] += self.number
            yield [self._changed(account) for account in (source, target)]

    def _changed(self, account: int) -> ChangeEvent:
        self.place += 1
        now = row(account, self.balances[account])
        return change_event("u", now, position=self.place, sent=self.at, transaction=self.number)


def changed(change: ChangeEvent) -> tuple[int, int]:
    """The account and its balance after a change of it."""
    after: Any = change["after"]
    return after["id"], int(after["balance"].rstrip("."))


def row(id: int, balance: int) -> dict[str, object]:
    return {"id": id, "balance": Decimal(balance)}


def movement(number: int, account: int, amount: int, seconds: float) -> ChangeEvent:
    """A row that was put into one of the tables of debits and credits."""
    inserted = {"number": number, "account": account, "amount": Decimal(amount)}
    at = START + timedelta(seconds=seconds)
    return change_event("c", inserted, position=100 + number, sent=at, transaction=number)
