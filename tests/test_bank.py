"""The bank: who owned what then, balances that add up to nothing at each version, and what was known of an account."""

import json
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from lakehouse.producers import producer
from lakehouse.producers.bank import ACCOUNTS, CUSTOMERS, TRANSACTIONS, records
from lakehouse.producers.workload import Record
from lakehouse.tables import bank
from lakehouse.testing import Stage, assert_live_equals_bounded

START = datetime(2026, 1, 1, 9, 57, tzinfo=UTC)  # a customer leaves at ten, and is back a minute later
SPAN = 5 * 60_000
SOURCES = {CUSTOMERS: "customer_topic", ACCOUNTS: "account_topic", TRANSACTIONS: "transaction_topic"}
DERIVED = ("transfers", "enriched_transfers", "account_sessions", "small_then_large", "fraud_features", "customer_days")


def sent(rate: int) -> list[Record]:
    workload = replace(producer("bank").workload, rate=rate, late_share=0.0, malformed_share=0.0)
    begin = int(START.timestamp() * 1000)
    return list(records(workload, begin, begin + SPAN, accounts=8))


def feed(stage: Stage, some: list[Record]) -> None:
    """As one micro-batch a topic, changes first; what has no value comes with its key."""
    for topic, source in SOURCES.items():
        of_topic = [record for record in some if record.topic == topic]
        if values := [record.value for record in of_topic if record.value is not None]:
            stage.feed("bank_events", values, source=source)
        for gone in (record for record in of_topic if record.value is None):
            at = datetime.fromtimestamp(gone.time_ms / 1000, UTC)
            stage.feed("bank_events", [None], key=gone.key, sent=at, source=source)


def close(stage: Stage) -> None:
    """Goes on with transfers of another account only: the other topics are silent, and hold nothing back."""
    for hours in (1, 24, 24, 24, 24, 24, 24, 25):
        at = START + timedelta(hours=hours)
        row = {"transaction_id": "x", "from_account": "x", "to_account": "x", "amount": "1.00", "event_time": at.isoformat()}
        stage.feed("bank_events", [row], source="transaction_topic")


def moment(row: dict) -> datetime:
    return datetime.fromisoformat(row["event_time"])


def valid(changes: list[Record], key: str, at: datetime) -> dict:
    """What the last change of the key says, up to that instant; nothing of one that was deleted."""
    known = [r for r in changes if r.key == key.encode() and datetime.fromtimestamp(r.event_ms / 1000, UTC) <= at]
    last = max(known, key=lambda r: r.event_ms, default=None)
    return json.loads(last.value) if last and last.value else {}


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_the_bank_is_what_an_oracle_says_and_sums_to_zero(stage_of):
    stage, given = stage_of(bank), sent(rate=4)
    feed(stage, given[:20])  # a topic that has said nothing yet holds no watermark back
    for some in (given[20 : len(given) // 2], given[len(given) // 2 :]):
        feed(stage, some)
        stage.run("account_totals", "customer_history", "account_history", "transfers", "enriched_transfers")
    close(stage)
    stage.run("account_totals", "customer_history", "account_history", *DERIVED)
    paid = [json.loads(r.value) for r in given if r.topic == TRANSACTIONS]

    totals = {r.account_id: r for r in stage.rows("account_totals").where("account_id != 'x'").collect()}
    assert {name: (r.debits, r.credits, r.balance) for name, r in totals.items()} == expected_totals(paid)
    table = stage.lake.catalog.table("account_totals")
    versions = [c.version for c in stage.lake.journal(table).live() if c.written]
    sums = [stage.lake.read(table, version).agg(F.sum("balance")).head()[0] for version in versions]
    assert sums == [0] * len(versions) and len(versions) >= 3

    of = {topic: [r for r in given if r.topic == topic] for topic in (ACCOUNTS, CUSTOMERS)}
    enriched = stage.rows("enriched_transfers").where("from_account != 'x'").collect()
    found = {r.transaction_id: (r.customer_id, r.country, r.segment) for r in enriched}
    assert found == {row["transaction_id"]: expected_owner(of, row) for row in paid}
    assert any(country is None for _, country, _ in found.values()), "one of a customer who had left"

    features = stage.rows("fraud_features").where("from_account != 'x'").collect()
    assert {r.transaction_id: (r.payments_1h, r.paid_1h, r.largest_1h) for r in features} == expected_features(paid)
    large = stage.rows("small_then_large").where("from_account != 'x'").collect()
    assert {r.transaction_id for r in large} == expected_large(paid)
    for name in ("account_totals", "customer_history", "account_history", *DERIVED):
        if stage.rows(name).count():
            assert_live_equals_bounded(stage, name)


def expected_totals(paid: list[dict]) -> dict[str, tuple[Decimal, Decimal, Decimal]]:
    debits, credits = defaultdict(Decimal), defaultdict(Decimal)
    for row in paid:
        debits[row["from_account"]] += Decimal(row["amount"])
        credits[row["to_account"]] += Decimal(row["amount"])
    return {name: (debits[name], credits[name], credits[name] - debits[name]) for name in debits.keys() | credits.keys()}


def expected_owner(of: dict[str, list[Record]], row: dict) -> tuple:
    customer = valid(of[ACCOUNTS], row["from_account"], moment(row)).get("customer_id")
    known = valid(of[CUSTOMERS], customer, moment(row)) if customer else {}
    return customer, known.get("country"), known.get("segment")


def expected_features(paid: list[dict]) -> dict[str, tuple]:
    found = {}
    for row in paid:
        before = [Decimal(r["amount"]) for r in paid if r["from_account"] == row["from_account"] and moment(r) < moment(row)]
        found[row["transaction_id"]] = (len(before), sum(before, Decimal("0.00")), max(before, default=None))
    return found


def expected_large(paid: list[dict]) -> set[str]:
    def follows(large: dict, small: dict) -> bool:
        near = timedelta(0) < moment(large) - moment(small) <= timedelta(minutes=1)
        return near and small["from_account"] == large["from_account"] and Decimal(small["amount"]) <= 1

    large = [row for row in paid if Decimal(row["amount"]) >= 500]
    return {row["transaction_id"] for row in large if any(follows(row, small) for small in paid)}


def test_the_same_settings_and_start_give_the_same_bank():
    first = sent(rate=50)
    assert first == sent(rate=50)
    kinds = {(r.topic, r.value is None) for r in first}
    assert kinds == {(TRANSACTIONS, False), (CUSTOMERS, False), (CUSTOMERS, True), (ACCOUNTS, False)}
    assert [r.time_ms for r in first] == sorted(r.time_ms for r in first), "in the order of sending"
    assert expected_large([json.loads(r.value) for r in first if r.topic == TRANSACTIONS]), "the pattern is there to be found"
