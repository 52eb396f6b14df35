"""A savepoint of a job that runs: taken under it, the job killed, its tables restored, and a fork beside it."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lakehouse.cli import main
from lakehouse.declare import catalog
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_address, kafka_broker
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.session import Session
from lakehouse.storage.versions import savepoints
from streaming_jobs.supervision import supervisor
from support.sensors_job import arrived, awaited, every_offset_once, produce

MORE = 8


@pytest.fixture
def settings(tmp_path, quick_jvm) -> Iterator[Settings]:
    """The sensors with a broker of their own; what runs at the end is killed."""
    settings = Settings(
        root=tmp_path / "root",
        jars=from_environment().jars,
        tables=("lakehouse.examples.sensors.tables",),
        spark_conf=quick_jvm,
        max_offsets_per_trigger=1_000,
    )
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    supervisor.stop(settings, "sensors", now=True)
    kafka_broker.stop(settings)


def lakehouse(settings: Settings, *command: str, exit_code: int = 0) -> str:
    found = CliRunner().invoke(main.app(), command, env=to_environment(settings))
    assert found.exit_code == exit_code, found.output
    return found.output


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_what_was_taken_under_a_running_job_is_restored_and_forked(settings, spark, tmp_path):
    sent = produce(settings, 0, 2)
    job = supervisor.start(settings, "sensors", wait=120)
    awaited(lambda: arrived(settings, "sensor_averages") > 0, "the windows have begun")
    lakehouse(settings, "savepoint", "create", "running", "--note", "under the job")
    sent += produce(settings, 2, 3)  # which the savepoint cannot have
    for number in range(MORE):  # whatever the job is at
        lakehouse(settings, "savepoint", "create", f"more-{number}")
    awaited(lambda: arrived(settings, "sensor_readings") == sent, "all messages")
    for name in ("running", *(f"more-{number}" for number in range(MORE))):
        lakehouse(settings, "savepoint", "verify", name)
    refused = lakehouse(settings, "savepoint", "restore", "running", "--yes", exit_code=2)
    assert "its job runs" in refused and "lakehouse stream stop" in refused
    os.kill(job.pid, signal.SIGKILL)
    awaited(lambda: not job.alive, "it is dead")

    fork = tmp_path / "fork"
    shown = lakehouse(settings, "savepoint", "fork", "running", str(fork))
    servers = kafka_address.bootstrap_servers(settings)
    assert f"LAKEHOUSE_BOOTSTRAP_SERVERS={servers}" in shown
    beside = replace(settings, root=fork, bootstrap_servers=servers)

    lakehouse(settings, "savepoint", "restore", "running", "--yes")
    assert 0 < arrived(settings, "sensor_readings") < sent, "messages are to be read again"
    sent += produce(settings, 3, 4)
    known = catalog.load(settings)
    try:
        for each in (settings, beside):
            supervisor.start(each, "sensors", wait=120)
        for each in (settings, beside):
            awaited(lambda each=each: arrived(each, "valid_readings") >= sent * 0.98, "all rows")
            awaited(lambda each=each: arrived(each, "sensor_readings") == sent, "all messages")
    finally:
        supervisor.stop(beside, "sensors")
    stop = ("stream", "stop", "sensors", "--savepoint")
    assert "there is one of that name" in lakehouse(settings, *stop, "running", exit_code=2)
    assert supervisor.status(settings, "sensors").alive, "refused before anything stops"
    stopped = lakehouse(settings, *stop, "stopped")
    assert "sensor-readings: it keeps all messages" in stopped, "as it was created"
    lakehouse(settings, "savepoint", "verify", "stopped")
    assert savepoints.savepoint(settings, "stopped").tables["sensor_readings"].rows >= sent * 0.98
    for each in (settings, beside):
        session = Session(each, known, spark)
        every_offset_once(session, sent)
        for name in ("valid_readings", "sensor_averages"):
            found = reconciliation.reconcile(session, known.table(name))
            assert found.verdict == "EQUAL" and found.rows_in_table, (each.root, name, found)
        lakehouse(each, "topic", "check", "sensor_readings")
    listed = lakehouse(settings, "savepoint", "list")
    assert "under the job" in listed and "before-running-" in listed
