"""A real broker, a real streaming job in a process of its own, killed for real, and its commit logs cut; then the tables
against the oracle."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from ipaddress import ip_address

import psutil
import pytest

from lakehouse.declare import catalog
from lakehouse.errors import JobError
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.log import log_tables
from lakehouse.storage.session import Session
from streaming_jobs import progress
from streaming_jobs.supervision import control_loop, supervisor
from support.sensors_job import arrived, awaited, every_offset_once, produce, the_oracle_agrees
from support.torn_logs import TABLES, cut, lines_of


@pytest.fixture(scope="module")
def settings(tmp_path_factory, quick_jvm) -> Iterator[Settings]:
    root = tmp_path_factory.mktemp("job")
    settings = Settings(
        root=root,
        jars=from_environment().jars,
        tables=("lakehouse.examples.sensors.tables",),
        spark_conf=quick_jvm,
        max_offsets_per_trigger=5_000,
    )
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    now = supervisor.status(settings, "sensors")
    if now and now.alive:
        psutil.Process(now.pid).kill()
    kafka_broker.stop(settings)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_job_killed_mid_stream_whose_commit_logs_are_cut_loses_and_doubles_nothing(
    settings, spark
):
    sent = produce(settings, 0, 10)
    first = supervisor.start(settings, "sensors", wait=240)
    assert first.state == "running" and first.alive
    sparks_pages_are_shown_to_this_machine_only(first)
    awaited(lambda: arrived(settings, "sensor_readings") >= sent, "the first lot recorded")
    awaited(lambda: all(lines_of(settings, name) for name in TABLES), "each table has a commit")
    before = {name: lines_of(settings, name) for name in TABLES}
    # as the job does each half minute: of lines that nobody copied some numbers would be lost
    log_tables.flush(settings, catalog.load(settings).of_pipeline("sensors"))
    sent += produce(settings, 10, 20)

    os.kill(first.pid, signal.SIGKILL)  # while it takes in the second lot
    awaited(lambda: supervisor.status(settings, "sensors").state == "dead", "seen to be dead")
    for name, lines in before.items():  # so that what came since is gone, too
        cut(settings, name, len(lines_of(settings, name)) - max(len(lines) - 4, 0))
    second = in_the_foreground(settings)
    sent += produce(settings, 20, 30)
    awaited(lambda: arrived(settings, "sensor_readings") >= sent, "all recorded after the kill")
    for name, lines in before.items():
        assert lines_of(settings, name)[: len(lines)] == lines, "as if nothing had been"

    refused_second_process(settings, second.pid)
    second.terminate()
    assert second.wait(120) == 0, "drained"
    stopped = supervisor.status(settings, "sensors")
    assert stopped.state == "stopped" and not stopped.alive
    awaited(lambda: not stopped.jvm_alive, "its JVM sees that it is alone")
    assert {q.dropped_by_spark for q in stopped.queries} == {0}

    session = Session(settings, catalog.load(settings), spark)
    every_offset_once(session, sent)
    no_more_files_than_rows_are_worth(session)
    the_oracle_agrees(session)
    for name in ("valid_readings", "sensor_averages"):
        certificate = reconciliation.reconcile(session, session.catalog.table(name))
        assert certificate.verdict == "EQUAL" and certificate.rows_in_table > 100, certificate


def in_the_foreground(settings: Settings) -> subprocess.Popen:
    """The job in the process of a command, which whoever starts it keeps running."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lakehouse", "stream", "run", "sensors"],
        env=os.environ | to_environment(settings),
    )
    awaited(lambda: supervisor.status(settings, "sensors").pid == process.pid, "it speaks")
    awaited(lambda: supervisor.status(settings, "sensors").state == "running", "it runs", 240)
    decision = control_loop.step(settings, "sensors")
    assert decision.action == "nothing" and "keeps it running" in decision.why
    with pytest.raises(JobError, match="runs in the foreground"):
        supervisor.restart(settings, "sensors")
    return process


def sparks_pages_are_shown_to_this_machine_only(job: progress.JobStatus) -> None:
    with urllib.request.urlopen(job.ui, timeout=60) as page:
        assert b"streaming job sensors" in page.read()
    listening = [
        c.laddr.ip
        for c in psutil.Process(job.jvm).net_connections()
        if c.status == psutil.CONN_LISTEN
    ]
    assert listening and all(
        ip_address(ip.removeprefix("::ffff:")).is_loopback for ip in listening
    ), listening


def refused_second_process(settings: Settings, winner: int) -> None:
    command = [sys.executable, "-m", "streaming_jobs.driver", "sensors"]
    second = subprocess.run(
        command,
        env=os.environ | to_environment(settings),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == 2
    assert f"pid={winner}" in second.stderr and "one process fills a table" in second.stderr
    assert supervisor.status(settings, "sensors").pid == winner, (
        "the loser leaves the winner's status alone"
    )


def no_more_files_than_rows_are_worth(session: Session) -> None:
    record = session.catalog.table("sensor_readings")
    for commit in session.commit_log(record).by_stream():
        log = session.path(record) / "_delta_log" / f"{commit.version:020}.json"
        assert log.read_text().count('{"add":') <= 1 + commit.arrived // 10_000, commit


def test_a_job_without_its_topic_says_so(settings):
    other = Settings(
        root=settings.root / "other", jars=settings.jars, tables=("lakehouse.examples.ads.tables",)
    )
    driver = subprocess.run(
        [sys.executable, "-m", "streaming_jobs.driver", "ads"],
        env=os.environ | to_environment(other), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert driver.returncode == 1
    assert "lakehouse broker start" in driver.stderr and "Traceback" not in driver.stderr


def test_a_pipeline_that_is_not_declared_is_refused_with_the_names_of_those_that_are(settings):
    command = [sys.executable, "-m", "streaming_jobs.driver", "nothing"]
    refused = subprocess.run(
        command,
        env=os.environ | to_environment(settings),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 2
    assert "pipeline='nothing'" in refused.stderr and "sensors" in refused.stderr
