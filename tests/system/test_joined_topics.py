"""Two topics, joined in a job of its own that is killed: against an oracle, and to the last window though nothing more comes."""

import json
import os
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from lakehouse.declare.catalog import load
from lakehouse.producers.registry import TOPIC
from lakehouse.producers.sender import send
from lakehouse.producers.workload import ORDINARY, Record
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.log.commit_log import CommitLog, frontier
from lakehouse.storage.session import Session
from streaming_jobs.supervision import supervisor
from support import TESTS
from support.sensors_job import arrived, awaited

START = datetime(2026, 1, 1, tzinfo=UTC)
LOTS = [range(1500), range(3600, 5100)]  # seconds; between them time goes on by itself
TABLES = ["by_window", "by_hour", "sold_after", "events"]


def rows(lot: range) -> dict[str, list[dict]]:
    """Two ads each second, and a sale of one of them each third second."""
    shown = [{"ad": n % 3, "at": second} for second in lot for n in (second, second + 1)]
    sold = [{"ad": s % 3, "at": s, "price": s % 7} for s in lot if s % 3 == 0 or s % 5 == 0]
    return {"shown-ads": shown, "sales": sold}


def produce(settings: Settings, lot: range) -> int:
    sent = 0
    for topic, found in rows(lot).items():
        records = []
        for number, row in enumerate(found):
            moment = START + timedelta(seconds=row["at"])
            at = int(moment.timestamp() * 1000)
            value = json.dumps(row | {"at": moment.isoformat()}).encode()
            records.append(Record(None, value, number % 2, at, at, ORDINARY))
        sent += send(records, topic, client_config(settings)).sent
    return sent


@pytest.fixture
def settings(tmp_path, quick_jvm, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=":")
    settings = Settings(
        root=tmp_path,
        jars=from_environment().jars,
        tables=("support.ads_and_sales",),
        spark_conf=quick_jvm,
    )
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    now = supervisor.status(settings, "ads_and_sales")
    if now and now.alive:
        psutil.Process(now.pid).kill()
    kafka_broker.stop(settings)


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_a_killed_job_joins_two_topics_to_the_last_window(settings, spark):
    pipeline, catalog = "ads_and_sales", load(settings)
    kafka_broker.ensure_topics(settings, {"shown-ads": 2, "sales": 2}, TOPIC)

    def read() -> int:
        return arrived(settings, "ads") + arrived(settings, "sales")

    # before the start: a partition whose first rows come after those of the others finds the watermark moved on
    sent = produce(settings, LOTS[0])
    first = supervisor.start(settings, pipeline, wait=240)
    awaited(lambda: arrived(settings, "by_window") > 0, "the first windows", 240)
    os.kill(first.pid, signal.SIGKILL)
    awaited(lambda: supervisor.status(settings, pipeline).state == "dead", "seen to be dead")
    sent += produce(settings, LOTS[1])
    supervisor.start(settings, pipeline, wait=240)
    awaited(lambda: read() >= sent, "all rows of both topics", 240)
    ends = START + timedelta(seconds=LOTS[1].stop)
    tables = [catalog.table(name) for name in ("by_window", "sold_after", "events")]
    awaited(
        lambda: all((frontier(settings, each) or START) >= ends for each in tables),
        "the last windows close although nothing more comes",
        240,
    )
    stopped = supervisor.stop(settings, pipeline)
    assert stopped.state == "stopped" and {q.dropped_by_spark for q in stopped.queries} == {0}

    session = Session(settings, catalog, spark)
    shown, turnover = Counter(), Counter()
    for lot in LOTS:
        of = rows(lot)
        shown.update((row["at"] // 10, row["ad"]) for row in of["shown-ads"])
        for row in of["sales"]:
            turnover[row["at"] // 10, row["ad"]] += row["price"]
    found = {
        (int((r.window.start.astimezone(UTC) - START).total_seconds()) // 10, r.ad): (
            r.shown,
            r.turnover,
        )
        for r in session.read(catalog.table("by_window")).collect()
    }
    assert found == {key: (shown[key], turnover[key]) for key in shown.keys() | turnover.keys()}
    assert session.read(catalog.table("events")).count() == sent == read()
    for name in TABLES:
        certificate = reconciliation.reconcile(session, catalog.table(name))
        assert certificate.verdict == "EQUAL", certificate
        assert name == "by_hour" or certificate.rows_recomputed >= 900, certificate
    late = [c.late for name in TABLES for c in CommitLog(settings, catalog.table(name)).by_stream()]
    assert not any(late), "each partition was sent in order"
