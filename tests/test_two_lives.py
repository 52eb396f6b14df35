"""Two lives of a real job's process on a real broker; between them the checkpoint of its ingest table is removed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from lakehouse import broker, cli, jars
from lakehouse.kafka_options import client_config
from lakehouse.producers import commands, sensors
from lakehouse.producers.sender import send
from lakehouse.producers.workload import Workload
from lakehouse.settings import Settings, from_environment, to_environment

BEGIN = 1_767_225_600_000  # 2026-01-01T00:00:00Z
WORKLOAD = Workload(seed=3, rate=20, disorder_ms=2_000, late_share=0, malformed_share=0.02, partitions=3)


@pytest.fixture
def settings(tmp_path, quick_jvm) -> Iterator[Settings]:
    settings = Settings(root=tmp_path, jars=from_environment().jars, tables=("lakehouse.tables.sensors",), spark_conf=quick_jvm)
    broker.start(settings, jars.resolve(settings.jars))
    yield settings
    broker.stop(settings)


def produce(settings: Settings, minute: int) -> int:
    records = sensors.records(WORKLOAD, BEGIN + minute * 60_000, BEGIN + (minute + 1) * 60_000)
    broker.ensure_topics(settings, {"sensor-readings": WORKLOAD.partitions}, commands.TOPIC)
    return send(records, "sensor-readings", client_config(settings)).sent


def live(settings: Settings) -> str:
    """One life, up to the present; what it said."""
    job = [sys.executable, "-m", "streaming_jobs.driver", "sensors", "--available-now"]
    done = subprocess.run(job, env=os.environ | to_environment(settings), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_a_job_whose_checkpoint_was_removed_between_two_lives_has_each_message_once(settings):
    sent = 0
    for life in range(2):
        sent += produce(settings, life)
        told = live(settings)
        assert ("table=sensor_readings, generation=" in told) == (life > 0), told
        compared = CliRunner().invoke(cli.app(), ["offsets", "sensor_readings", "--json"], env=to_environment(settings))
        assert compared.exit_code == 0, compared.output
        assert sum(json.loads(line)["rows"] for line in compared.stdout.splitlines()) == sent
        shutil.rmtree(settings.root / "_checkpoints" / "sensor_readings")
