"""A job that ran well for a while begins its count of restarts from zero; a start that takes long is no failure."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from typer.testing import CliRunner

from lakehouse.cli import main
from lakehouse.errors import JobError
from lakehouse.producers.registry import TOPIC
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment, to_environment
from streaming_jobs import progress
from streaming_jobs.supervision import control_loop, desired, job_logs, supervisor
from streaming_jobs.supervision.desired import Event
from support.observed import status_of
from support.sensors_job import awaited


@pytest.fixture
def settings(tmp_path, quick_jvm) -> Iterator[Settings]:
    """A lakehouse of its own; what runs in it at the end is killed."""
    settings = Settings(
        root=tmp_path / "root", jars=from_environment().jars, tables=("lakehouse.examples.sensors.tables",), spark_conf=quick_jvm,
        restarts=1, healthy_after="2 seconds",
    )  # fmt: skip
    yield settings
    if (settings.root / "_jobs" / "sensors").exists():
        supervisor.stop(settings, "sensors", now=True)
    kafka_broker.stop(settings)


def test_a_process_that_takes_long_to_start_is_told_to_go_on_starting(settings):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as slow:
        born = psutil.Process(slow.pid).create_time()
        desired.note(
            settings, "sensors", Event(progress.now(), "started", "a test", slow.pid, born)
        )
        with pytest.raises(
            JobError,
            match=r"it is still starting after 0 s, and goes on with that.*lakehouse stream status sensors",
        ):
            supervisor.await_running(settings, "sensors", slow.pid, 0)
        assert supervisor.running(settings, "sensors")
        shown = CliRunner().invoke(
            main.app(), ["stream", "start", "sensors", "--wait", "0"], env=to_environment(settings)
        )
        assert "still starting" in shown.output, "and a second one is not started beside it"
        slow.kill()  # the end of the test, for the process that it stands for would not read its input


def test_a_process_that_has_not_spoken_is_known_from_its_launch(settings):
    progress.write(settings, status_of(1, 1.0, state="stopped"))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as quiet:
        born = psutil.Process(quiet.pid).create_time()
        desired.note(
            settings, "sensors", Event(progress.now(), "started", "a test", quiet.pid, born)
        )
        assert supervisor.identity(settings, "sensors") == (quiet.pid, born)
        seen = control_loop.observe(settings, "sensors")
        assert (seen.state, seen.alive) == ("starting", True)
    job_logs.log_path(settings, "sensors").write_text("error: tables=x: no such module\n")
    seen = control_loop.observe(settings, "sensors")
    assert (seen.state, seen.alive, seen.error) == ("failed", False, "tables=x: no such module")


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_that_is_killed_again_and_again_but_ran_well_between_is_never_given_up(settings):
    kafka_broker.start(settings, jars.resolve(settings.jars))
    kafka_broker.ensure_topics(settings, {"sensor-readings": 1}, TOPIC)
    with pytest.raises(JobError, match="still starting after 0 s"):
        supervisor.start(settings, "sensors", wait=0, by="a test")
    for _ in range(3):  # one restart is allowed
        job = supervisor.await_running(
            settings, "sensors", supervisor.identity(settings, "sensors")[0]
        )
        awaited(lambda: supervisor.status(settings, "sensors").well >= 2, "it runs well")
        os.kill(job.pid, signal.SIGKILL)
        awaited(lambda job=job: not job.alive, "it is dead")
        decision = control_loop.step(settings, "sensors")
        assert (decision.action, decision.counted) == ("start", True), decision
    restarts = [
        event for event in desired.history(settings, "sensors") if event.what == "restarted"
    ]
    assert len(restarts) == 3 and all(event.well >= 2 for event in restarts)
    # while it starts, so it was never well
    os.kill(supervisor.identity(settings, "sensors")[0], signal.SIGKILL)
    awaited(
        lambda: control_loop.step(settings, "sensors").action == "break",
        "given up: that was no good run",
    )
