"""`lakehouse topic create`: what a job asks for when a topic of its tables is not there."""

import json
import os
import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from typer.testing import CliRunner

from lakehouse.cli import main
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment, to_environment


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    settings = Settings(
        root=tmp_path_factory.mktemp("topics"),
        jars=from_environment().jars,
        tables=("lakehouse.examples.sensors.tables",),
    )
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    kafka_broker.stop(settings)


def create(settings: Settings, *arguments: str):
    return CliRunner().invoke(
        main.app(), ["topic", "create", *arguments], env=to_environment(settings)
    )


def test_a_topic_is_created_once_with_its_partitions_and_properties(settings):
    done = create(settings, "orders", "--partitions", "3", "--config", "retention.ms=-1")
    assert (done.exit_code, done.stdout) == (0, "orders: created, partitions: 3\n"), done.output
    again = create(settings, "orders", "--partitions", "5")
    assert (again.exit_code, again.stdout) == (0, "orders: there already; it stays as it is\n"), (
        again.output
    )
    admin = AdminClient(client_config(settings) | {"log_level": "0"})
    assert len(admin.list_topics(timeout=30).topics["orders"].partitions) == 3
    (described,) = admin.describe_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, "orders")]
    ).values()
    assert described.result()["retention.ms"].value == "-1"
    wrong = create(settings, "others", "--config", "retention.ms")
    assert wrong.exit_code == 2 and "write retention.ms=value" in wrong.stderr


@pytest.mark.slow
@pytest.mark.parallel
def test_a_job_without_its_topic_names_the_command_that_creates_it(settings):
    environment = os.environ | to_environment(settings)
    job = subprocess.run(
        [sys.executable, "-m", "streaming_jobs.driver", "sensors", "--available-now"], env=environment, capture_output=True,
        text=True, timeout=240,
    )  # fmt: skip
    assert job.returncode != 0
    said = json.loads((settings.root / "_jobs" / "sensors" / "status.json").read_text())["error"]
    assert "`lakehouse topic create sensor-readings --partitions 4`" in said, said + job.stderr
