"""Streaming jobs that Dagster starts: what is said of one that cannot start, and how soon one is started."""

import shutil
import time

import dagster as dg
import psutil
import pytest

from assets import definitions, sensors
from assets.streams import job_key
from lakehouse.declare import catalog
from lakehouse.settings import Settings, from_environment
from streaming_jobs import progress
from streaming_jobs.supervision import desired, supervisor


@pytest.fixture
def settings(filled, tmp_path) -> Settings:
    """A filled lakehouse, without a broker."""
    root = shutil.copytree(filled, tmp_path / "root")
    return Settings(
        root=root, tables=("lakehouse.examples.sensors.tables",), jars=from_environment().jars
    )


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def test_stopping_a_job_that_never_ran_is_nothing(settings, instance):
    result = (
        definitions.build(settings)
        .resolve_job_def("stop_sensors")
        .execute_in_process(instance=instance)
    )
    assert result.success


def test_a_job_that_cannot_start_fails_in_its_own_words(settings, instance):
    """There is no broker: the driver ends, and the end of its log is the failure's text."""
    job = definitions.build(settings).resolve_job_def("start_sensors")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    failure = next(e for e in result.all_events if e.is_step_failure).step_failure_data
    assert "pipeline='sensors'" in failure.user_failure_data.description
    sensor = sensors.streaming_job_states(settings, catalog.load(settings))
    (told,) = sensor.evaluate_tick(dg.build_sensor_context(instance)).asset_events
    assert (told.asset_key, told.metadata["state"].value) == (job_key("sensors"), "failed")
    assert (
        "none is running" in told.metadata["error"].value
        and "none is running" in told.metadata["log"].value
    )
    assert (
        told.metadata["desired"].value.startswith("running since ")
        and "start_sensors" in told.metadata["desired"].value
    )


def test_the_sensor_that_supervises_takes_less_than_a_second_and_starts_what_is_to_run(settings):
    sensor = sensors.supervise_streaming_jobs(settings, catalog.load(settings))

    def tick() -> str:
        began = time.monotonic()
        told = sensor.evaluate_tick(dg.build_sensor_context()).skip_message
        assert time.monotonic() - began < 1
        return told

    assert tick() == "sensors: nothing (nobody has asked for it)"
    desired.wish(settings, "sensors", "running", "a test")
    assert tick() == "sensors: start (it is to run)"
    pid, born = supervisor.identity(settings, "sensors")
    assert tick() == "sensors: nothing (it is starting)"
    psutil.wait_procs([psutil.Process(pid)], timeout=60)  # there is no broker
    assert not progress.is_alive(pid, born)
    assert "none is running" in tick()
    supervisor.stop(settings, "sensors", now=True)
    assert tick() == "sensors: nothing (it is stopped)"
