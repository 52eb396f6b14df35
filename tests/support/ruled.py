"""Rules that change while payments flow, and that each account sees: the example of the page on process functions."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    KeyedProcess,
    as_of_join,
    ingest_table,
    kafka,
    process,
    row_table,
    versioned_table,
)

payment_topic = kafka(
    "payments", schema="account STRING NOT NULL, amount BIGINT NOT NULL, at TIMESTAMP NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def payments(payment_topic: DataFrame) -> DataFrame:
    return payment_topic


rule_topic = kafka(
    "rules",
    schema="rule STRING NOT NULL, most BIGINT NOT NULL, at TIMESTAMP NOT NULL",
    key="rule",
    quiet_timeout="2 seconds",
)


@ingest_table(layer="bronze", event_time="at")
def rule_changes(rule_topic: DataFrame) -> DataFrame:
    return rule_topic.withColumn("at", F.coalesce("at", "sent")).drop("sent")


@versioned_table(layer="silver", keys=["rule"])
def rules(rule_changes: DataFrame) -> DataFrame:
    return rule_changes


@row_table(layer="silver")
def ruled_payments(payments: DataFrame, rules: DataFrame) -> DataFrame:
    """Each payment with the rules that held at its time, in the order of their names."""
    each = as_of_join(payments, rules, on={}, at="at", take=["rule", "most"])
    rule = F.when(F.col("rule").isNotNull(), F.struct("rule", "most"))
    held = F.sort_array(F.collect_list(rule)).alias("rules")
    return each.groupBy(*payments.columns).agg(held)


class Limits(KeyedProcess):
    """The payments by which an account has spent more than a rule allows."""

    output = "account STRING, at TIMESTAMP, rule STRING, spent BIGINT"

    def on_row(self, state, row, timers):
        state["spent"] = state.get("spent", 0) + row["amount"]
        for rule in row["rules"]:
            if state["spent"] > rule["most"]:
                yield {"account": row["account"], "rule": rule["rule"], "spent": state["spent"]}


@row_table(layer="gold", ttl="1 day")
def broken_limits(ruled_payments: DataFrame) -> DataFrame:
    return process(ruled_payments, by=["account"], function=Limits(), at="at")
