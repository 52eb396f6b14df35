"""A real job whose root is in an S3 server, killed for real; batch runs, queries and reconciliation by commands."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import psutil
import pytest

from benchmarks import s3_server
from lakehouse.declare import catalog
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.log.commit_log import frontier
from streaming_jobs.supervision import supervisor
from support.sensors_job import arrived, awaited, go_on, produce

pytestmark = [pytest.mark.slow, pytest.mark.turn(0)]


@pytest.fixture(scope="module")
def faults() -> s3_server.Faults:
    return s3_server.Faults()


@pytest.fixture(scope="module")
def settings(tmp_path_factory, quick_jvm, faults) -> Iterator[Settings]:
    with s3_server.running(faults):
        settings = Settings(
            root=s3_server.folder("job"),
            local=tmp_path_factory.mktemp("local"),
            jars=from_environment(required=False).jars,
            tables=("lakehouse.examples.sensors.tables",),
            spark_conf=quick_jvm,
            heartbeat_within="5 minutes",
        )
        kafka_broker.start(settings, jars.resolve(settings.jars))
        yield settings
        now = supervisor.status(settings, "sensors")
        if now and now.alive:
            psutil.Process(now.pid).kill()
        kafka_broker.stop(settings)


@pytest.mark.timeout(900)
def test_job_in_an_object_store_is_killed_and_all_is_equal(settings, faults):
    sent = produce(settings, 0, 10)
    first = supervisor.start(settings, "sensors", wait=240)
    awaited(lambda: arrived(settings, "sensor_readings") >= sent, "the first lot recorded", 240)
    faults.set(lost=0.05, refused=0.05)
    sent += produce(settings, 10, 20)
    os.kill(first.pid, signal.SIGKILL)  # while it takes in the second lot
    awaited(lambda: supervisor.status(settings, "sensors").state == "dead", "seen to be dead")
    second = supervisor.start(settings, "sensors", wait=240)
    third = subprocess.run(
        [sys.executable, "-m", "streaming_jobs.driver", "sensors"],
        env=os.environ | to_environment(settings),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert third.returncode == 2 and f"pid={second.pid}" in third.stderr, third.stderr
    awaited(lambda: arrived(settings, "sensor_readings") >= sent, "the second lot recorded", 240)
    sent += go_on(settings, 61, 66)
    awaited(lambda: arrived(settings, "sensor_readings") >= sent, "all recorded", 240)
    awaited(lambda: is_closed(settings), "the first hour is closed", 240)
    supervisor.stop(settings, "sensors", timeout=120)
    faults.set(lost=0.0, refused=0.0)
    assert faults.counts["lost"] and faults.counts["refused"]

    [rows] = map(json.loads, command(settings, "query", "--json", ONCE).splitlines())
    assert rows["rows"] == rows["offsets"] == sent - int(rows["bad"])
    command(settings, "backfill", "sensor_averages", *HOUR)
    for name in ("valid_readings", "sensor_averages"):
        verdicts = command(settings, "reconcile", "run", name, "--json").splitlines()
        assert [json.loads(line)["verdict"] for line in verdicts] == ["EQUAL"]
    assert not any(settings.own_folder.glob("*/*/_delta_log")), "tables are in the store alone"


HOUR = ("--start", "2026-01-01T00", "--end", "2026-01-01T01")
ONCE = (
    "SELECT count(*) AS rows, count(DISTINCT concat(_arrival['partition'], '-', _arrival['offset'])) AS offsets, "
    "(SELECT count(*) FROM sensor_readings__quarantine) AS bad FROM sensor_readings"
)


def is_closed(settings: Settings) -> bool:
    reached = frontier(settings, catalog.load(settings).table("sensor_averages"))
    return reached is not None and reached >= datetime(2026, 1, 1, 1, tzinfo=UTC)


def command(settings: Settings, *words: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "lakehouse", *words],
        env=os.environ | to_environment(settings),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout
