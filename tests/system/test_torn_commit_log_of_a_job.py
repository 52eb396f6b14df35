"""A job goes on over commit logs that were cut."""

from collections.abc import Iterator

import pytest

from lakehouse.declare import catalog
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.lakehouse import Session
from streaming_jobs import supervisor
from support.sensors_job import arrived, awaited, every_offset_once, produce, the_oracle_agrees
from support.torn_logs import TABLES, cut, lines_of


@pytest.fixture
def job(tmp_path, quick_jvm) -> Iterator[Settings]:
    settings = Settings(
        root=tmp_path / "root", jars=from_environment().jars, tables=("lakehouse.examples.sensors.tables",), spark_conf=quick_jvm,
        max_offsets_per_trigger=5_000,
    )  # fmt: skip
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    supervisor.stop(settings, "sensors", now=True)
    kafka_broker.stop(settings)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_job_goes_on_over_commit_logs_that_were_cut_in_the_middle_of_a_line(job, spark):
    sent = produce(job, 0, 10)
    supervisor.start(job, "sensors", by="a test")
    awaited(lambda: arrived(job, "sensor_readings") >= sent, "the first lot")
    awaited(lambda: all(lines_of(job, name) for name in TABLES), "each table has a commit")
    supervisor.stop(job, "sensors", by="a test")
    before = {name: lines_of(job, name) for name in TABLES}
    for name in TABLES:  # a slow machine has made fewer steps
        cut(job, name, min(4, len(before[name])))
    sent += produce(job, 10, 20)
    supervisor.start(job, "sensors", by="a test")
    awaited(lambda: arrived(job, "sensor_readings") >= sent, "the second lot")
    assert all(lines_of(job, name)[: len(lines)] == lines for name, lines in before.items()), (
        "as if nothing had been"
    )
    sent += produce(job, 20, 30)
    awaited(lambda: arrived(job, "sensor_readings") >= sent, "the third lot")
    stopped = supervisor.stop(job, "sensors", by="a test")
    assert stopped.state == "stopped" and "put back from _commits" in stopped.error
    lake = Session(job, catalog.load(job), spark)
    every_offset_once(lake, sent)
    the_oracle_agrees(lake)
    certificate = reconciliation.reconcile(lake, lake.catalog.table("sensor_averages"))
    assert certificate.verdict == "EQUAL" and certificate.rows_in_table > 100, certificate
