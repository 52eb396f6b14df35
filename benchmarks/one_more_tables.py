"""Payments and the total of each account, and four tables of each kind behind them, for `benchmarks.one_more`."""

from pyspark.sql import DataFrame

from lakehouse import (
    around,
    ingest_table,
    kafka,
    keyed_table,
    row_table,
    sql,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.declare.decorators import Decorator
from lakehouse.declare.table import Table

COPIES = 4
payment_topic = kafka(
    "more-payments",
    schema="id BIGINT NOT NULL, account STRING NOT NULL, at TIMESTAMP NOT NULL, cents BIGINT NOT NULL",
)


@ingest_table(layer="bronze", event_time="at", delay="2 seconds")
def payments(payment_topic: DataFrame) -> DataFrame:
    return payment_topic


_KEYED = keyed_table(layer="gold", keys=["account"])
_TOTALS = (
    "SELECT account, sum(cents) AS cents, count(*) AS payments FROM {payments} GROUP BY account"
)
balances = _KEYED(sql("balances", _TOTALS))
# kind -> what it asks, and how it is declared; each takes the rows of each step, about 240 at 200 events a second
KINDS: dict[str, tuple[str, Decorator]] = {
    "row": (
        "SELECT *, CAST(cents / 100 AS DECIMAL(12, 2)) AS amount FROM {payments}",
        row_table(layer="silver"),
    ),
    "window": (
        "SELECT window, account, sum(cents) AS cents FROM {payments} GROUP BY window, account",
        window_table(layer="gold", window=tumbling("10 seconds"), keys=["account"]),
    ),
    "merge": (_TOTALS, _KEYED),
    "groups": ("SELECT account, cents DIV payments AS mean FROM {balances}", _KEYED),
    "join": (
        "SELECT now._arrival, now.id, now.at, count(before.id) AS before FROM {payments} AS now LEFT JOIN {payments} AS before "
        "ON before.account = now.account AND before.at >= now.at - INTERVAL 5 SECONDS AND before.at < now.at "
        "GROUP BY now._arrival, now.id, now.at",
        row_table(layer="silver", context=around(before="5 seconds")),
    ),
    "versions": (
        "SELECT account, cents, at, _arrival FROM {payments}",
        versioned_table(layer="silver", keys=["account"]),
    ),
}


def names(kind: str) -> list[str]:
    return [f"{kind}_{copy}" for copy in range(COPIES)]


def _declared(kind: str) -> dict[str, Table]:
    query, declare = KINDS[kind]
    return {name: declare(sql(name, query)) for name in names(kind)}


for _kind in KINDS:
    globals().update(_declared(_kind))
