"""Scheduled pipelines in processes of their own: runs that hang or fail; the same tables whatever the freshness."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from pyspark.sql import functions as F

from assets import definitions
from lakehouse.declare import catalog
from lakehouse.errors import JobError
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.delta.digest import digest
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import replace_file
from lakehouse.storage.log.commit_log import CommitLog, frontier
from lakehouse.storage.session import Session
from streaming_jobs import progress
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import control_loop, desired, scheduled, supervisor
from support.sensors_job import arrived, awaited, produce

SENSORS = ("lakehouse.examples.sensors.tables",)
NIGHTLY = {"sensors": "scheduled 0 3 * * *"}


@pytest.fixture
def settings(tmp_path) -> Settings:
    """An empty lakehouse whose pipeline is scheduled, and without a broker."""
    return Settings(root=tmp_path, jars=from_environment().jars, tables=SENSORS, freshness=NIGHTLY)


def spoken(settings: Settings, state: progress.State, pid: int, **given: object) -> None:
    """The status file of a process."""
    born, at = psutil.Process(pid).create_time(), progress.now()
    known = {"started_at": at, "heartbeat": at, "freshness": NIGHTLY["sensors"]} | given
    status = JobStatus("sensors", pid, born, 0, 0.0, state, **known)
    replace_file(layout.job_folder(settings, "sensors") / "status.json", asdict(status))


def test_a_run_that_hangs_is_ended_by_whoever_waits_for_it(settings):
    desired.wish(settings, "sensors", "running", "a test")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as hanging:
        long_ago = (datetime.now(UTC) - timedelta(minutes=2)).isoformat()
        spoken(settings, "running", hanging.pid, started_at=long_ago, heartbeat=long_ago)
        with pytest.raises(
            JobError,
            match="its run failed, and the next one tries again from where it was; no sign of life",
        ):
            scheduled.await_end(settings, "sensors", hanging.pid)


def test_a_run_that_nobody_wants_is_refused_and_one_that_fails_says_why(settings):
    with pytest.raises(
        JobError,
        match="off its schedule, nobody has asked for it; `lakehouse stream start sensors`",
    ):
        scheduled.run(settings, "sensors", by="a test")
    desired.wish(settings, "sensors", "stopped", "ann")
    with pytest.raises(JobError, match="stopped by ann at"):
        scheduled.run(settings, "sensors", by="a test")
    desired.wish(settings, "sensors", "running", "ann")
    with pytest.raises(JobError, match=r"its run failed.*none is running"):  # no broker
        scheduled.run(settings, "sensors", by="a test")
    seen = control_loop.step(settings, "sensors")
    assert seen.action == "nothing" and "none is running" in seen.why


def test_a_run_that_fails_fails_in_dagster_with_its_error(settings, monkeypatch):
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    desired.wish(settings, "sensors", "running", "a test")
    result = (
        definitions.build(settings)
        .resolve_job_def("run_sensors")
        .execute_in_process(raise_on_error=False)
    )
    assert not result.success
    failure = next(e for e in result.all_events if e.is_step_failure).step_failure_data
    told = failure.user_failure_data.description
    assert "its run failed" in told and "none is running" in told


# ---- the same tables


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_the_tables_are_the_same_whatever_the_knob_says(tmp_path, spark, quick_jvm, monkeypatch):
    """One topic, two lakehouses: one takes it by one knob after the other, on the same checkpoints, the other continuously."""
    home = Settings(
        root=tmp_path / "broker", jars=from_environment().jars, tables=SENSORS, spark_conf=quick_jvm
    )
    address = kafka_broker.start(home, jars.resolve(home.jars)).bootstrap_servers
    # several micro-batches, for in one alone no window would close
    plain = replace(
        home, root=tmp_path / "plain", bootstrap_servers=address, max_offsets_per_trigger=6_000
    )
    turned = replace(home, root=tmp_path / "turned", bootstrap_servers=address)
    # so long, for Spark counts intervals from the epoch: the end of a short one would come within the story, now and then
    every = replace(turned, freshness={"sensors": "every 7 days"})
    try:
        sent = [produce(home, 0, 1)]
        supervisor.start(turned, "sensors", wait=180)
        awaited(lambda: caught_up(turned, sum(sent)), "the first lot")
        done = threading.Event()
        with ThreadPoolExecutor() as beside:
            trickle = beside.submit(trickled, home, turned, 1, done)
            try:
                # in several steps, so that there is a next one that closes what was read first
                run_in_dagster(
                    replace(turned, freshness=NIGHTLY, max_offsets_per_trigger=sent[0] // 4),
                    monkeypatch,
                )
            finally:
                done.set()
            sent += trickle.result()

        # its first micro-batch comes at once, the next on a Thursday
        supervisor.start(every, "sensors", wait=180)
        awaited(lambda: caught_up(every, sum(sent)), "what the scheduled run left")
        supervisor.start(plain, "sensors", wait=180)
        awaited(lambda: caught_up(plain, sum(sent)), "all, continuously", 300)
        supervisor.stop(plain, "sensors")
        produce(home, len(sent), len(sent) + 1)
        not_hung(every)
        stopped = supervisor.stop(every, "sensors")
        assert stopped.state == "stopped" and {q.dropped_by_spark for q in stopped.queries} == {0}
        assert arrived(every, "sensor_readings") == sum(sent), (
            "the time of what came last had not come"
        )
        the_same_tables(
            Session(plain, catalog.load(plain), spark), Session(every, catalog.load(every), spark)
        )
    finally:
        for each in (plain, turned):
            supervisor.stop(each, "sensors", now=True)
        kafka_broker.stop(home)


def trickled(home: Settings, settings: Settings, first: int, done: threading.Event) -> list[int]:
    """Sends a minute of event time every four seconds, from the scheduled run's begin until `done`; how many records each."""
    of_run = NIGHTLY["sensors"]
    awaited(
        lambda: done.is_set() or supervisor.status(settings, "sensors").freshness == of_run,
        "the scheduled run",
    )
    sent = [produce(home, first, first + 1)]
    while not done.wait(4):
        sent.append(produce(home, first + len(sent), first + len(sent) + 1))
    return sent


def run_in_dagster(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule's job: drains the process that runs by another knob, runs to the present and leaves no process."""
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    result = definitions.build(settings).resolve_job_def("run_sensors").execute_in_process()
    (output,) = [e.step_output_data for e in result.all_events if e.is_successful_output]
    status = supervisor.status(settings, "sensors")
    assert (status.state, status.freshness) == ("stopped", NIGHTLY["sensors"])
    assert not status.alive and not progress.is_alive(status.jvm, status.jvm_started)
    asked = [e.why for e in desired.history(settings, "sensors") if e.what == "stopping"]
    assert asked[-1].endswith(f"to be {NIGHTLY['sensors']}")
    assert "the next run of its schedule is due" in control_loop.step(settings, "sensors").why

    record, averages = (
        catalog.load(settings).table(name) for name in ("sensor_readings", "sensor_averages")
    )
    began = datetime.fromisoformat(status.started_at)
    commits = [c for c in CommitLog(settings, record).by_stream() if c.at > began]
    assert output.metadata["rows"].value == sum(c.arrived for c in commits) > 0
    ahead = frontier(settings, averages)
    assert output.metadata["frontier"].value <= ahead.timestamp()
    last, first = commits[0].watermark, commits[-1].watermark
    assert ahead >= last > first, "what the run read first is closed by what it read next"


def caught_up(settings: Settings, sent: int) -> bool:
    record = catalog.load(settings).table("sensor_readings")
    good = sum(c.written for c in CommitLog(settings, record).by_stream())
    return (
        arrived(settings, "sensor_readings") == sent and arrived(settings, "valid_readings") == good
    )


def the_same_tables(one: Session, other: Session) -> None:
    for name in ("sensor_readings", "valid_readings", "sensor_averages", "sensor_trends"):
        table = one.catalog.table(name)
        rows = [session.read(table) for session in (one, other)]
        if table.window:
            until = min(frontier(session.settings, table) for session in (one, other))
            rows = [each.where(F.col("window.end") <= F.lit(until)) for each in rows]
        first, second = (digest(each) for each in rows)
        assert first == second and first.rows > 100, name
    assert (
        reconciliation.reconcile(other, other.catalog.table("sensor_averages")).verdict == "EQUAL"
    )


def not_hung(settings: Settings) -> None:
    """Between two micro-batches it lives, nothing is under way at its head, and nothing is done about it."""
    seen: list[str] = []

    def idle() -> bool:
        status = supervisor.status(settings, "sensors")
        (head,) = [q for q in status.queries if q.table == "sensor_readings"]
        if head.busy_since:
            seen.clear()
        elif status.heartbeat not in seen:
            seen.append(status.heartbeat)
        assert control_loop.step(settings, "sensors").why == "it is running"
        return len(seen) == 4

    awaited(idle, "four looks in a row at an idle head", 30)
