"""A producer that is far faster than the job: what waits is seen and alarmed, and worked off in steps of one size."""

import re
from collections.abc import Iterator

import pytest

from lakehouse.declare import catalog
from lakehouse.examples.sensors import producer as sensors
from lakehouse.producers.registry import TOPIC
from lakehouse.producers.sender import send
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.session import Session
from streaming_jobs.exporters import metrics
from streaming_jobs.supervision import supervisor
from support import ROOT
from support.sensors_job import BEGIN, MINUTE, WORKLOAD, arrived, awaited, every_offset_once

ALERTS = ROOT / "ops" / "prometheus" / "alerts.yml"
STEP = 20_000  # records a micro-batch: some thousands a second, and the producer sends many times as many


@pytest.fixture
def settings(tmp_path, quick_jvm) -> Iterator[Settings]:
    settings = Settings(
        root=tmp_path, jars=from_environment().jars, tables=("lakehouse.examples.sensors.tables",), spark_conf=quick_jvm,
        max_offsets_per_trigger=STEP, driver_memory="600m",
    )  # fmt: skip
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    supervisor.stop(settings, "sensors", now=True)
    kafka_broker.stop(settings)


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(800)
def test_a_producer_ten_times_as_fast_as_the_job_is_caught_up_with(settings, spark):
    kafka_broker.ensure_topics(settings, {"sensor-readings": WORKLOAD.partitions}, TOPIC)
    supervisor.start(settings, "sensors", wait=240)
    sent = produced(settings, 0, 1)
    awaited(lambda: arrived(settings, "sensor_readings") == sent, "the first minute", 240)
    before = supervisor.status(settings, "sensors")

    # more than twice what is alarmed: some of it is read while it is sent
    sent += produced(settings, 1, 81)
    most = 0
    alarming = float(re.search(r"lakehouse_table_lag_records\) > (\d+)", ALERTS.read_text())[1])
    awaited(lambda: lag(settings) > alarming, "the lag is as high as is alarmed", 60)

    def caught_up() -> bool:
        nonlocal most
        most = max(most, supervisor.status(settings, "sensors").jvm_bytes)
        return arrived(settings, "sensor_readings") == sent and lag(settings) == 0

    awaited(caught_up, "caught up", 400)
    after = supervisor.stop(settings, "sensors")
    assert after.pid == before.pid and not any(q.restarts for q in after.queries), "by itself"
    session = Session(settings, catalog.load(settings), spark)
    rows = [
        c.arrived for c in session.commit_log(session.catalog.table("sensor_readings")).by_stream()
    ]
    # what is allowed is shared out to partitions, and rounded
    full = [n for n in rows if n > STEP - WORKLOAD.partitions]
    assert max(rows) <= STEP and len(full) >= sent // STEP - 2, (
        "as many records each time, however many wait"
    )
    assert most < (600 << 20) * 2, "the heap, and what a JVM has beside it"
    every_offset_once(session, sent)
    assert (
        reconciliation.reconcile(session, session.catalog.table("sensor_averages")).verdict
        == "EQUAL"
    )


def produced(settings: Settings, start_minute: int, end_minute: int) -> int:
    records = sensors.records(WORKLOAD, BEGIN + start_minute * MINUTE, BEGIN + end_minute * MINUTE)
    return send(records, "sensor-readings", client_config(settings)).sent


def lag(settings: Settings) -> float:
    """Of the record, as Prometheus is told."""
    found = metrics.registry(Lakehouse(settings, catalog.load(settings))).collect()
    samples = [
        s for family in found for s in family.samples if s.name == "lakehouse_table_lag_records"
    ]
    return sum(s.value for s in samples if s.labels["table"] == "sensor_readings")
