"""Processes of pipelines: several in one and apart again, one that dies of memory."""

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lakehouse.declare import catalog
from lakehouse.examples.ads import producer as ads
from lakehouse.producers.registry import TOPIC
from lakehouse.producers.sender import send
from lakehouse.producers.workload import Record
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Resources, Settings, from_environment
from lakehouse.storage.session import Session
from streaming_jobs import progress
from streaming_jobs.supervision import control_loop, desired, supervisor
from support import ROOT, TESTS
from support.sensors_job import (
    BEGIN,
    MINUTE,
    WORKLOAD,
    arrived,
    awaited,
    every_offset_once,
    go_on,
    produce,
    the_oracle_agrees,
)

BOTH = ("lakehouse.examples.sensors.tables", "lakehouse.examples.ads.tables")
TOGETHER = {"all": ("sensors", "ads")}


@pytest.fixture
def settings(tmp_path, quick_jvm) -> Iterator[Settings]:
    """A lakehouse of its own; what runs in it at the end is killed."""
    settings = Settings(
        root=tmp_path / "root", jars=from_environment().jars, tables=BOTH, spark_conf=quick_jvm
    )
    yield settings
    for folder in (settings.root / "_jobs").glob("*"):
        supervisor.stop(settings, folder.name, now=True)
    kafka_broker.stop(settings)


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_pipelines_are_put_into_one_process_and_apart_again_on_the_same_checkpoints(
    settings, spark
):
    kafka_broker.start(settings, jars.resolve(settings.jars))
    sent, seen = produce(settings, 0, 10), views(settings, 0, 10)
    pools = settings.root / "pools.xml"
    pools.write_text(
        re.search(
            r"```xml\n(.*?)```",
            (ROOT / "docs" / "operate" / "supervision.md").read_text(),
            re.DOTALL,
        )[1]
    )
    shared = replace(
        settings, together=TOGETHER, resources={"all": Resources(scheduler_pools=str(pools))}
    )
    alone = supervisor.start(settings, "sensors", wait=240)
    awaited(lambda: arrived(settings, "sensor_readings") == sent, "the first lot", 240)

    both = supervisor.start(shared, "all", wait=240)
    assert not supervisor.status(settings, "sensors").alive and both.pid != alone.pid
    assert "in the process 'all'" in desired.history(settings, "sensors")[-1].why
    assert {q.table for q in both.queries} >= {"sensor_averages", "campaign_views"}
    sent, seen = sent + go_on(settings, 10, 20), seen + views(settings, 10, 20)
    awaited(
        lambda: (
            (arrived(settings, "sensor_readings"), arrived(settings, "ad_events")) == (sent, seen)
        ),
        "all in one",
        240,
    )
    weighed = ("campaign_views", "sensor_averages")
    awaited(
        lambda: [weight_of(both, table) for table in weighed] == [3, 1],
        "the pools, with the first jobs in them",
        60,
    )

    assert control_loop.step(settings, "sensors").action == "start", (
        "it was wanted, and its process has ended"
    )
    awaited(lambda: supervisor.status(settings, "sensors").state == "running", "alone again", 240)
    assert not supervisor.status(shared, "all").alive
    sent += go_on(settings, 20, 30)
    awaited(lambda: arrived(settings, "sensor_readings") == sent, "the last lot", 240)
    stopped = supervisor.stop(settings, "sensors")
    assert {q.dropped_by_spark for q in stopped.queries} == {0}

    session = Session(settings, catalog.load(settings), spark)
    every_offset_once(session, sent)
    the_oracle_agrees(session)
    for name in ("sensor_averages", "campaign_views"):
        certificate = reconciliation.reconcile(session, session.catalog.table(name))
        assert certificate.verdict == "EQUAL" and certificate.rows_in_table > 100, certificate


def weight_of(job: progress.JobStatus, table: str) -> int:
    """Of the scheduler pool of a table's query, as Spark shows it; 0 before its first job."""
    with urllib.request.urlopen(f"{job.ui}/stages/", timeout=60) as page:
        row = re.search(rf">{table}</a>(.*?)</tr>", page.read().decode(), re.DOTALL)
    # after the least share of the cores
    return int(re.findall(r"<td>(\d+)</td>", row[1])[1]) if row else 0


def views(settings: Settings, start_minute: int, end_minute: int) -> int:
    """Sends events of ads; how many."""
    records = ads.records(WORKLOAD, BEGIN + start_minute * MINUTE, BEGIN + end_minute * MINUTE)
    kafka_broker.ensure_topics(settings, {"ad-events": WORKLOAD.partitions}, TOPIC)
    return send(records, "ad-events", client_config(settings)).sent


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_job_that_dies_of_memory_takes_no_other_with_it(settings, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=":")
    settings = replace(
        settings,
        tables=("lakehouse.examples.sensors.tables", "support.hungry"),
        restarts=1,
        resources={"hungry": Resources(driver_memory="512m")},
    )
    kafka_broker.start(settings, jars.resolve(settings.jars))
    kafka_broker.ensure_topics(settings, {"orders": 1}, TOPIC)
    sent = produce(settings, 0, 5)
    well, hungry = (supervisor.start(settings, name, wait=240) for name in ("sensors", "hungry"))
    order = json.dumps({"at": "2026-01-01T00:00:00Z", "size": 600_000_000}).encode()
    send([Record(None, order, 0, BEGIN, BEGIN, "ordinary")], "orders", client_config(settings))

    def given_up() -> bool:
        control_loop.step(settings, "hungry")
        return supervisor.status(settings, "hungry").state == "crash_loop"

    awaited(given_up, "restarted once, then given up", 300)
    assert "ended, killed or out of memory" in supervisor.status(settings, "hungry").error
    assert supervisor.status(settings, "hungry").pid != hungry.pid, "it was tried again"
    sent += produce(settings, 5, 10)
    awaited(lambda: arrived(settings, "sensor_readings") == sent, "the other goes on", 240)
    now = supervisor.status(settings, "sensors")
    assert (now.pid, now.state, [q.restarts for q in now.queries if q.restarts]) == (
        well.pid,
        "running",
        [],
    )
