"""A job that ran well for a while begins its count of restarts from zero; a start that takes long is no failure."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from typer.testing import CliRunner

from lakehouse.cli import main
from lakehouse.errors import JobError
from lakehouse.producers.topics import TOPIC
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment, to_environment
from streaming_jobs import control_loop, desired, progress, supervisor
from streaming_jobs.desired import Desired, Event
from streaming_jobs.healing import Bounds, Observed, backoff, decide, unhealthy
from support.sensors_job import awaited

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
RUN = Desired("running", BEGIN.isoformat(), "ann")


def hour_of_kills(well: timedelta, apart: timedelta = timedelta(minutes=4)) -> list[str]:
    """What is decided at each of 15 kills; `well`: how long the job ran before each."""
    history: list[Event] = []
    done = []
    for kill in range(1, 16):
        now = BEGIN + kill * apart
        ended = now - timedelta(seconds=1)
        seen = Observed(
            "sensors", "dead", False, ended - well - timedelta(minutes=1), ended, well=well
        )
        decision = decide(RUN, seen, history, now, Bounds())
        if decision.due:
            now = decision.due
            decision = decide(RUN, seen, history, now, Bounds())
        done.append(decision.action)
        if decision.action == "start":
            history.append(
                Event(
                    now.isoformat(),
                    "restarted",
                    decision.why,
                    counted=decision.counted,
                    well=well.total_seconds(),
                )
            )
    return done


def test_a_job_that_runs_well_between_two_kills_is_started_at_once_each_time():
    assert hour_of_kills(timedelta(seconds=175)) == ["start"] * 15
    assert hour_of_kills(timedelta(minutes=2)) == ["start"] * 15, "the default"
    assert hour_of_kills(timedelta(seconds=119))[:6] == ["start"] * 5 + ["break"], (
        "a crash loop is given up as before"
    )


def test_what_counts_is_what_came_since_the_job_was_well():
    healthy = timedelta(minutes=2)
    done = [Event(BEGIN.isoformat(), "restarted", "it died", well=well) for well in (0, 500, 3, 4)]
    assert unhealthy(done, timedelta(0), healthy) == done[1:], (
        "the restart that ended the good time is the first"
    )
    assert unhealthy(done[:1], timedelta(0), healthy) == done[:1]
    assert unhealthy(done, healthy, healthy) == []


def test_the_wait_begins_from_zero_too():
    now = BEGIN + timedelta(hours=1)
    recent = [
        Event((now - timedelta(minutes=n)).isoformat(), "restarted", "it died", counted=True)
        for n in (40, 30, 20)
    ]
    ended = now - timedelta(seconds=1)
    seen = Observed("sensors", "dead", False, now - timedelta(minutes=19), ended)
    waiting = decide(RUN, seen, recent, now, Bounds())
    assert (waiting.action, waiting.due) == ("nothing", ended + backoff("sensors", 3))
    assert (
        decide(RUN, replace(seen, well=timedelta(minutes=18)), recent, now, Bounds()).action
        == "start"
    )


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
