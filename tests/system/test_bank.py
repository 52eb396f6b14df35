"""The bank: who owned what then, balances that add up to nothing at each version, and what was known of an account."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from aiosmtpd.controller import Controller
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import functions as F

from examples.bank import tables as bank
from examples.bank.producer import ACCOUNTS, CUSTOMERS, PRODUCER, TRANSACTIONS, records
from examples.fraud import tables as fraud
from lakehouse.declare import catalog
from lakehouse.declare.inputs.readers import SourceRecord
from lakehouse.producers.registry import ensure_topics
from lakehouse.producers.sender import send
from lakehouse.producers.workload import Record
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.sinks import comparison
from lakehouse.sinks.follower import Follower
from lakehouse.sinks.targets.mail import Mail
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.session import Session
from lakehouse.testing import Stage, assert_stream_equals_batch
from streaming_jobs.supervision import supervisor
from streaming_jobs.supervision.jobs import follower_of
from support import committed
from support.sensors_job import awaited

# a customer leaves at ten, and is back a minute later
START = datetime(2026, 1, 1, 9, 57, tzinfo=UTC)
SPAN = 5 * 60_000
SOURCES = {
    CUSTOMERS: "customer_topic",
    ACCOUNTS: "account_topic",
    TRANSACTIONS: "transaction_topic",
}
TOPIC = "fraud-alerts"
BALANCES = ("account_debits", "account_credits", "account_balances", "bank_balance")
ALERTS = ("small_then_large", "fraud_features", "fraud_alerts")
DERIVED = (
    "transfers",
    "enriched_transfers",
    "account_sessions",
    *ALERTS,
    "customer_days",
)


def sent(rate: int, begin: int = 0, end: int = SPAN) -> list[Record]:
    """What is sent from one instant to another, in milliseconds since the start."""
    workload = replace(PRODUCER.workload, rate=rate, late_share=0.0, malformed_share=0.0)
    start = int(START.timestamp() * 1000)
    return list(records(workload, start + begin, start + end, accounts=8))


def feed(stage: Stage, some: list[Record]) -> None:
    """As one micro-batch a topic, changes first; what has no value comes with its key."""
    for topic, source in SOURCES.items():
        of_topic = [record for record in some if record.topic == topic]
        values = [SourceRecord(r.value, key=r.key) for r in of_topic if r.value is not None]
        if values:
            stage.feed("bank_events", values, source=source)
        for gone in (record for record in of_topic if record.value is None):
            at = datetime.fromtimestamp(gone.time_ms / 1000, UTC)
            stage.feed("bank_events", [None], key=gone.key, sent=at, source=source)


def close(stage: Stage) -> list[dict]:
    """Goes on with transfers of another account only: the other topics are silent, and hold nothing back. Those that closed."""
    rows = []
    for n, hours in enumerate((1, 24, 24, 24, 24, 24, 24, 25, 26)):
        at = (START + timedelta(hours=hours)).isoformat()
        rows.append(
            {
                "transaction_id": f"x{n}",
                "from_account": "x",
                "to_account": "x",
                "amount": "1.00",
                "event_time": at,
            }
        )
        stage.feed("bank_events", rows[-1:], source="transaction_topic")
    return rows[:-1]


def moment(row: dict) -> datetime:
    return datetime.fromisoformat(row["event_time"])


def valid(changes: list[Record], key: str, at: datetime) -> dict:
    """What the last change of the key says, up to that instant; nothing of one that was deleted."""
    known = [
        r
        for r in changes
        if r.key == key.encode() and datetime.fromtimestamp(r.event_ms / 1000, UTC) <= at
    ]
    last = max(known, key=lambda r: r.event_ms, default=None)
    return json.loads(last.value) if last and last.value else {}


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_the_bank_is_what_an_oracle_says_and_sums_to_zero(spark, tmp_path, mailbox, settings):
    stage, given = Stage(spark, tmp_path, bank, fraud), sent(rate=4)
    mails, server = mailbox
    table, target = stage.session.catalog.target("fraud_mails")
    assert isinstance(target, Mail)
    follower = Follower(stage.session, table, replace(target, server=server, rate=""))
    follower.begin()
    follower.step()
    feed(stage, given[:20])  # a topic that has said nothing yet holds no watermark back
    for some in (given[20 : len(given) // 2], given[len(given) // 2 :]):
        feed(stage, some)
        stage.run(
            "account_totals",
            *BALANCES,
            "customer_history",
            "account_history",
            "transfers",
            "enriched_transfers",
            *ALERTS,
        )
    with alerting(stage.session) as process:  # messages; the next one goes on where it is killed
        process.kill()
    closed = close(stage)
    stage.run("account_totals", *BALANCES, "customer_history", "account_history", *DERIVED)
    while follower.step():
        pass
    follower.end()
    with alerting(stage.session):
        pass
    paid = [json.loads(r.value) for r in given if r.topic == TRANSACTIONS]

    totals = {
        r.account_id: r for r in stage.rows("account_totals").where("account_id != 'x'").collect()
    }
    assert {
        name: (r.debits, r.credits, r.balance) for name, r in totals.items()
    } == expected_totals(paid)
    table = stage.session.catalog.table("account_totals")
    versions = [c.version for c in stage.session.commit_log(table).by_stream() if c.written]
    sums = [
        stage.session.read(table, version).agg(F.sum("balance")).head()[0] for version in versions
    ]
    assert sums == [0] * len(versions) and len(versions) >= 3
    balances = {(r.account_id, r.balance) for r in stage.rows("account_balances").collect()}
    assert balances == {(r.account_id, r.balance) for r in stage.rows("account_totals").collect()}

    of = {topic: [r for r in given if r.topic == topic] for topic in (ACCOUNTS, CUSTOMERS)}
    enriched = stage.rows("enriched_transfers").where("from_account != 'x'").collect()
    found = {r.transaction_id: (r.customer_id, r.country, r.segment) for r in enriched}
    assert found == {row["transaction_id"]: expected_owner(of, row) for row in paid}
    assert any(country is None for _, country, _ in found.values()), (
        "one of a customer who had left"
    )

    features = stage.rows("fraud_features").collect()
    told = {
        r.transaction_id: (r.payments_1h, r.paid_1h, r.payments_1d, r.paid_1d) for r in features
    }
    assert told == expected_features(paid + closed)
    large = stage.rows("small_then_large").where("from_account != 'x'").collect()
    assert {r.transaction_id for r in large} == expected_large(paid)
    alerts = [(r.transaction_id, r.reason) for r in stage.rows("fraud_alerts").collect()]
    assert sorted(alerts) == sorted(expected_alerts(paid + closed))
    assert {reason for _, reason in alerts} == {"after a small one", "unusual"}
    text = re.compile(r"by transfer (\S+)\.\s+Why it is looked at: (.*)\.")
    mailed = [text.search(mail.get_content()).groups() for mail in mails]
    assert sorted(mailed) == sorted(alerts), "each alert is mailed once"
    the_topic_has_each_alert_once(stage.session, alerts)
    for name in ("account_totals", *BALANCES, "customer_history", "account_history", *DERIVED):
        if stage.rows(name).count():
            assert_stream_equals_batch(stage, name)


@contextmanager
def alerting(session: Session) -> Iterator[subprocess.Popen]:
    """The follower of the topic of alerts, as a process, once the topic has all that the table has."""
    path = session.path(session.catalog.table("fraud_alerts"))
    command = [sys.executable, "-m", "streaming_jobs.exporters.follower", TOPIC]
    environment = os.environ | to_environment(session.settings)

    def held() -> int:
        status = supervisor.status(session.settings, follower_of(TOPIC))
        return status.queries[0].batch if status and status.pid == process.pid else -1

    with subprocess.Popen(command, env=environment) as process:
        try:
            awaited(lambda: held() == DeltaTable(path).version(), "the topic has all alerts")
            yield process
        finally:
            process.terminate()


def the_topic_has_each_alert_once(session: Session, alerts: list[tuple[str, str]]) -> None:
    messages = committed.read(session.settings, TOPIC, 5)
    rows = [json.loads(message.value()) for message in messages]
    assert sorted((row["transaction_id"], row["reason"]) for row in rows) == sorted(alerts)
    table, target = session.catalog.target(TOPIC)
    assert len({dict(message.headers())["lakehouse-version"] for message in messages}) > 1
    places = {(row["from_account"], m.partition()) for row, m in zip(rows, messages, strict=True)}
    assert len(places) == len({account for account, _ in places}), "an account is in one partition"
    assert comparison.compare(session, table, target).verdict == "EQUAL"


def expected_totals(paid: list[dict]) -> dict[str, tuple[Decimal, Decimal, Decimal]]:
    debits, credits = defaultdict(Decimal), defaultdict(Decimal)
    for row in paid:
        debits[row["from_account"]] += Decimal(row["amount"])
        credits[row["to_account"]] += Decimal(row["amount"])
    return {
        name: (debits[name], credits[name], credits[name] - debits[name])
        for name in debits.keys() | credits.keys()
    }


def expected_owner(of: dict[str, list[Record]], row: dict) -> tuple:
    customer = valid(of[ACCOUNTS], row["from_account"], moment(row)).get("customer_id")
    known = valid(of[CUSTOMERS], customer, moment(row)) if customer else {}
    return customer, known.get("country"), known.get("segment")


def expected_features(paid: list[dict]) -> dict[str, tuple]:
    found = {}
    for row in paid:
        of_account = [
            r for r in paid if r["from_account"] == row["from_account"] and moment(r) < moment(row)
        ]
        known: list = []
        for span in (timedelta(hours=1), timedelta(days=1)):
            amounts = [Decimal(r["amount"]) for r in of_account if moment(r) >= moment(row) - span]
            known += [len(amounts), sum(amounts, Decimal("0.00"))]
        found[row["transaction_id"]] = tuple(known)
    return found


def expected_large(paid: list[dict]) -> set[str]:
    def follows(large: dict, small: dict) -> bool:
        near = timedelta(0) < moment(large) - moment(small) <= timedelta(minutes=1)
        return (
            near
            and small["from_account"] == large["from_account"]
            and Decimal(small["amount"]) <= 1
        )

    large = [row for row in paid if Decimal(row["amount"]) >= 500]
    return {row["transaction_id"] for row in large if any(follows(row, small) for small in paid)}


def expected_alerts(paid: list[dict]) -> set[tuple[str, str]]:
    found = {(each, "after a small one") for each in expected_large(paid)}
    features = expected_features(paid)
    for row in paid:
        *_, payments, total = features[row["transaction_id"]]
        if payments >= 3 and Decimal(row["amount"]) * payments >= 10 * total:
            found.add((row["transaction_id"], "unusual"))
    return found


@pytest.fixture
def mailbox() -> Iterator[tuple[list[EmailMessage], str]]:
    """Mails that a real server takes, and its address."""
    mails: list[EmailMessage] = []

    class Box:
        async def handle_DATA(self, server, session, envelope) -> str:
            mails.append(message_from_bytes(envelope.content, policy=policy.default))
            return "250 OK"

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    controller = Controller(Box(), "127.0.0.1", port)
    controller.start()
    yield mails, f"smtp://127.0.0.1:{port}"
    controller.stop()


@pytest.fixture
def settings(tmp_path, quick_jvm) -> Iterator[Settings]:
    """The bank with a broker of its own; what runs at the end is killed."""
    settings = Settings(
        root=tmp_path,
        jars=from_environment().jars,
        tables=(bank.__name__,),
        spark_conf=quick_jvm,
    )
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    supervisor.stop(settings, "bank", now=True)
    kafka_broker.stop(settings)


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_killed_again_and_again_the_sum_is_zero_at_every_version_for_a_reader_beside(
    settings, spark
):
    given = sent(rate=20)
    size = -(-len(given) // 10)  # three lots for each life that is killed, and one for the last
    lots = (given[first : first + size] for first in range(0, len(given), size))
    ensure_topics(settings, PRODUCER, 5)

    def send_lot() -> None:
        send(next(lots), TRANSACTIONS, client_config(settings))

    table = catalog.load(settings).table("account_totals")
    totals, done = table_path(settings, table), Event()
    joined = table_path(settings, catalog.load(settings).table("account_balances"))
    whole = table_path(settings, catalog.load(settings).table("bank_balance"))
    with ThreadPoolExecutor(2) as beside:
        reading = [beside.submit(read_again_and_again, each, done) for each in (totals, joined)]
        try:
            for _ in range(3):
                before = version(totals)
                send_lot()
                job = supervisor.start(settings, "bank", wait=240)
                for new in (1, 2):
                    awaited(
                        lambda least=before + new: version(totals) >= least, "a new version", 240
                    )
                    send_lot()
                os.kill(job.pid, signal.SIGKILL)  # in the middle of the lot before, and of this one
                awaited(
                    lambda: supervisor.status(settings, "bank").state == "dead", "seen to be dead"
                )
            send_lot()
            supervisor.start(settings, "bank", wait=240)
            all_there(totals, joined, whole, given)
            # while they catch up the inputs of the joined table may not meet; now they do each time
            for second in (0, 1_000):
                more = sent(20, SPAN + second, SPAN + second + 1_000)
                send(more, TRANSACTIONS, client_config(settings))
                given += more
                all_there(totals, joined, whole, given)
        finally:
            done.set()
    supervisor.stop(settings, "bank")
    seen, beside_them = (each.result() for each in reading)
    assert len(seen) >= 5 and set(seen.values()) == {0}, seen
    assert len(beside_them) >= 2 and set(beside_them.values()) == {0}, beside_them
    for path in (totals, joined, whole):
        assert {sum(column(path, "balance", n)) for n in range(1, version(path) + 1)} == {0}, path

    session = Session(settings, catalog.load(settings), spark)
    there = {
        row.account_id: (row.debits, row.credits, row.balance)
        for row in session.read(table).collect()
    }
    assert there == expected_totals(
        [json.loads(record.value) for record in given if record.topic == TRANSACTIONS]
    )
    assert session.read(session.catalog.table("bank_events")).where(
        "kind = 'transfer'"
    ).count() == transfers_in(given)
    for name in ("account_totals", *BALANCES):
        assert reconciliation.reconcile(session, session.catalog.table(name)).verdict == "EQUAL", (
            name
        )


def all_there(totals: Path, joined: Path, whole: Path, given: list[Record]) -> None:
    """Waits until all transfers are in the totals, in the balances and in the sum."""
    awaited(
        lambda: sum(column(totals, "transfers")) == 2 * transfers_in(given),
        "all of them in the totals",
        seconds=300,
    )
    awaited(
        lambda: sorted(column(joined, "balance")) == sorted(column(totals, "balance")),
        "all of them in the balances",
        seconds=120,
    )
    accounts = len(column(totals, "balance"))
    awaited(lambda: column(whole, "accounts") == [accounts], "all of them in the sum")


def transfers_in(given: list[Record]) -> int:
    return sum(record.topic == TRANSACTIONS for record in given)


def read_again_and_again(totals: Path, done: Event) -> dict[int, Decimal]:
    """Version -> what the balances add up to, of each version that was the newest when it was looked at."""
    found: dict[int, Decimal] = {}
    while not done.wait(0.05):
        if (newest := version(totals)) > 0 and newest not in found:
            found[newest] = sum(column(totals, "balance", newest))
    return found


def version(totals: Path) -> int:
    return DeltaTable(str(totals)).version() if DeltaTable.is_deltatable(str(totals)) else 0


def column(totals: Path, name: str, version: int | None = None) -> list:
    table = QueryBuilder().register("totals", DeltaTable(str(totals), version=version))
    return pa.table(table.execute(f"SELECT {name} FROM totals").read_all())[name].to_pylist()


def test_the_same_settings_and_start_give_the_same_bank():
    first = sent(rate=50)
    assert first == sent(rate=50)
    kinds = {(r.topic, r.value is None) for r in first}
    assert kinds == {
        (TRANSACTIONS, False),
        (CUSTOMERS, False),
        (CUSTOMERS, True),
        (ACCOUNTS, False),
    }
    assert [r.time_ms for r in first] == sorted(r.time_ms for r in first), "in the order of sending"
    assert expected_large([json.loads(r.value) for r in first if r.topic == TRANSACTIONS]), (
        "the pattern is there to be found"
    )
