"""Two hosts, one root: a process in another PID namespace, under another host's name, is known by its lease alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from lakehouse.declare import catalog
from lakehouse.errors import JobError
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import replace_file
from lakehouse.storage.session import Session
from streaming_jobs import progress
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import (
    control_loop,
    desired,
    healing,
    holders,
    lease,
    supervisor,
)
from streaming_jobs.supervision.desired import Desired
from streaming_jobs.supervision.healing import Bounds, Observed, decide
from streaming_jobs.supervision.holders import Holder, Place
from support.sensors_job import arrived, awaited, every_offset_once, produce, the_oracle_agrees

APART = [
    "unshare",
    *(["--user", "--map-root-user"] if os.getuid() else []),
    "--pid",
    "--fork",
    "--mount-proc",
    "--uts",
]
SECOND = [*APART, "sh", "-c", 'hostname second && "$@"; exit $?', "sh", sys.executable]

# Holds the lease and says that it runs, as a job does, without Spark; ends well at the end of its input.
HOLDS = """
import sys
from dataclasses import replace
import psutil
from lakehouse.settings import from_environment
from streaming_jobs import progress
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import lease
from streaming_jobs.supervision.holders import here

settings, me, now = from_environment(), psutil.Process(), progress.now()
with lease.acquire(settings, "sensors") as turn:
    status = JobStatus("sensors", me.pid, me.create_time(), 0, 0.0, "running", now, now, epoch=turn.epoch, place=here())
    progress.write(settings, status)
    print(me.pid, flush=True)
    sys.stdin.read()
    progress.write(settings, replace(status, state="stopped"))
"""


@pytest.fixture
def settings(tmp_path, quick_jvm) -> Iterator[Settings]:
    """A lakehouse of its own; what runs in it at the end is killed."""
    settings = Settings(
        root=tmp_path / "root", jars=from_environment().jars, tables=("lakehouse.examples.sensors.tables",), spark_conf=quick_jvm,
        max_offsets_per_trigger=30_000, heartbeat_within="8 seconds",
    )  # fmt: skip
    settings.root.mkdir()
    yield settings
    if (settings.root / "_jobs" / "sensors").exists() and supervisor.is_here(settings, "sensors"):
        supervisor.stop(settings, "sensors", now=True)
    kafka_broker.stop(settings)


@contextmanager
def second_host(settings: Settings, *command: str) -> Iterator[subprocess.Popen]:
    """A process elsewhere, which is gone with its PID namespace at the end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [*SECOND, *command], env=os.environ | to_environment(settings), **pipes
    ) as process:
        try:
            yield process
        finally:
            crash(process)


def crash(host: subprocess.Popen) -> None:
    """Ends the first process of the PID namespace, and so all of them at once."""
    for child in psutil.Process(host.pid).children() if host.poll() is None else []:
        child.kill()
    host.wait()


def waits_in_the_foreground(settings: Settings) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "lakehouse", "stream", "run", "sensors"],
        env=os.environ | to_environment(settings), stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert "host=second" in (said := process.stderr.readline()), said
        assert "unless it renews it, and this process waits for that" in said
        process.terminate()
    assert process.returncode == 0 and desired.read(settings, "sensors").state == "running"


@pytest.mark.slow
@pytest.mark.parallel
def test_nothing_is_started_beside_a_process_elsewhere_before_its_lease_has_expired(settings):
    desired.wish(settings, "sensors", "running", "a test")
    with second_host(settings, "-c", HOLDS) as host:
        pid = int(host.stdout.readline())
        seen = supervisor.status(settings, "sensors")
        assert (seen.state, seen.alive, seen.pid, seen.place.host) == (
            "running",
            True,
            pid,
            "second",
        )
        decision = control_loop.step(settings, "sensors")
        assert (
            decision.action == "nothing" and "it is running elsewhere (host=second" in decision.why
        )
        assert supervisor.start(settings, "sensors", by="a test").pid == pid, (
            "it runs: nothing is to be started"
        )
        with pytest.raises(JobError, match=r"it runs elsewhere.*lakehouse stream stop sensors"):
            supervisor.restart(settings, "sensors", by="a test")
        waits_in_the_foreground(settings)
        with (
            pytest.raises(JobError, match=r"host=second.* one process fills a table"),
            lease.acquire(settings, "sensors"),
        ):
            pass

        crash(host)  # its lock is gone with it, and whether it lives cannot be seen
        decision = control_loop.step(settings, "sensors")
        assert decision.action == "nothing" and "elsewhere" in decision.why, decision
        with (
            pytest.raises(JobError, match=r"may still write.*expires in"),
            lease.acquire(settings, "sensors"),
        ):
            pass
    awaited(lambda: supervisor.status(settings, "sensors").state == "dead", "its lease has expired")
    assert not supervisor.running(settings, "sensors")
    with lease.acquire(settings, "sensors") as turn:
        assert turn.epoch == 2
    assert [event.what for event in desired.history(settings, "sensors")] == [], (
        "nothing was started meanwhile"
    )


def test_a_process_elsewhere_that_ended_well_is_not_waited_for(settings):
    with second_host(settings, "-c", HOLDS) as host:
        host.stdout.readline()
        host.stdin.close()
        assert host.wait() == 0
        assert supervisor.status(settings, "sensors").state == "stopped"
        with lease.acquire(settings, "sensors") as turn:
            assert turn.epoch == 2


def test_a_pid_of_another_place_is_never_mistaken_for_a_process_here(settings):
    me = psutil.Process()
    elsewhere = replace(holders.here(), namespace="1")
    now = progress.now()
    progress.write(settings, JobStatus("sensors", me.pid, me.create_time(), me.pid, me.create_time(), "running", now, now,
                                       place=elsewhere))  # fmt: skip
    status = supervisor.status(settings, "sensors")
    assert status.state == "dead" and not status.jvm_alive, (
        "no lease, so nothing says that it lives"
    )
    # and this process is not ended for it: else this test would not end
    supervisor.kill(settings, "sensors", "a test")


def test_the_lease_is_judged_by_the_clock_of_the_file_system(settings):
    elsewhere = Place("second", "another boot", "1")
    path = layout.job_file(settings, "sensors", "epoch.json")
    # the clock of that host is wrong by a day
    ahead = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    replace_file(path, asdict(Holder(1, 7, 0.0, ahead, "sensors", elsewhere)))
    path.with_name("lease").touch()
    assert 0 < holders.left(settings, "sensors", holders.here()) <= 8
    long_ago = path.stat().st_mtime - 9
    os.utime(path.with_name("lease"), (long_ago, long_ago))
    assert holders.left(settings, "sensors", holders.here()) == 0
    assert [p.name for p in path.parent.iterdir() if p.name.startswith(".clock")] == []


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUN, STOP = (
    Desired(state, (NOW - timedelta(hours=9)).isoformat(), "ann")
    for state in ("running", "stopped")
)
AWAY = Observed("sensors", "running", True, NOW - timedelta(hours=8), NOW - timedelta(hours=7), elsewhere="host=b",
                lease=timedelta(seconds=30))  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "seen", "action", "why"),
    [
        (
            RUN,
            AWAY,
            "nothing",
            "it is running elsewhere (host=b)",
        ),  # its heartbeat is old by the clock of here
        (RUN, replace(AWAY, busy=("t", NOW - timedelta(hours=1))), "nothing", "elsewhere"),
        (RUN, replace(AWAY, state="failed", alive=False), "nothing", "its lease expires in 30 s"),
        (
            RUN,
            replace(AWAY, state="dead", alive=False, lease=timedelta(0)),
            "start",
            "its process died",
        ),
        (
            RUN,
            replace(
                AWAY,
                state="dead",
                alive=False,
                lease=timedelta(0),
                heartbeat=NOW + timedelta(hours=1),
            ),
            "start",
            "died",
        ),
        (STOP, AWAY, "nothing", "drains as it was asked to"),
    ],
)
def test_what_is_done_about_a_process_elsewhere(wanted, seen, action, why):
    decision = decide(wanted, seen, (), NOW, Bounds())
    assert decision.action == action and why in decision.why, decision
    assert healing.WANTED not in decision.why


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_whose_host_is_gone_goes_on_here_and_one_elsewhere_drains_when_it_is_stopped_here(
    settings, spark
):
    running = kafka_broker.start(settings, jars.resolve(settings.jars))
    # a second host knows no embedded broker
    settings = replace(settings, bootstrap_servers=running.bootstrap_servers)
    sent = produce(settings, 0, 10)
    desired.wish(settings, "sensors", "running", "a test")
    driver = ("-m", "streaming_jobs.driver", "sensors")
    with second_host(settings, *driver) as host:
        awaited(
            lambda: arrived(settings, "sensor_readings") >= sent,
            "the job elsewhere fills its tables",
        )
        assert supervisor.status(settings, "sensors").place.host == "second"
        decisions = [control_loop.step(settings, "sensors")]
        sent += produce(settings, 10, 20)
        crash(host)

        def healed() -> bool:
            decisions.append(control_loop.step(settings, "sensors"))
            return decisions[-1].action == "start"

        awaited(healed, "started here")
        assert all("elsewhere" in d.why or "its lease expires" in d.why for d in decisions[:-1]), (
            decisions
        )
        assert len(decisions) > 2 and "its process died" in decisions[-1].why
    second = supervisor.await_running(
        settings, "sensors", supervisor.identity(settings, "sensors")[0]
    )
    assert second.place.is_here and second.epoch == 2
    awaited(
        lambda: arrived(settings, "sensor_readings") >= sent, "it goes on where the other ended"
    )
    supervisor.stop(settings, "sensors", by="a test")

    with second_host(settings, *driver) as host:
        sent += produce(settings, 20, 30)
        awaited(
            lambda: arrived(settings, "sensor_readings") >= sent, "elsewhere again, without a wait"
        )
        stopped = supervisor.stop(settings, "sensors", by="a test")
        assert (stopped.state, stopped.place.host) == ("stopped", "second")
        assert host.wait() == 0

    session = Session(settings, catalog.load(settings), spark)
    every_offset_once(session, sent)
    the_oracle_agrees(session)
