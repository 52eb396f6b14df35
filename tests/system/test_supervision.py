"""Real processes, killed, stopped and broken for real; whoever supervises them brings them back, and never two at a time."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka as kafka
import psutil
import pyarrow as pa
import pytest

from lakehouse import processes
from lakehouse.declare import catalog
from lakehouse.errors import CommitError, JobError
from lakehouse.examples.sensors import tables as sensors
from lakehouse.ranges import BEGINNING
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.stopping import Stop
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import replace_file
from lakehouse.storage.position import table_state
from lakehouse.storage.session import Session
from lakehouse.stream.engines import ingest
from lakehouse.stream.micro_batch import BatchLog, stream_run
from lakehouse.stream.reading.raw_records import raw_records
from lakehouse.testing import COMMIT_POINTS, Stage
from streaming_jobs import progress
from streaming_jobs.supervision import control_loop, desired, job_logs, lease, rescaling, supervisor
from streaming_jobs.supervision.desired import Event
from support.sensors_job import (
    arrived,
    awaited,
    every_offset_once,
    produce,
    supervised,
    the_oracle_agrees,
)

SENSORS = ("lakehouse.examples.sensors.tables",)


@pytest.fixture
def settings(tmp_path, quick_jvm) -> Iterator[Settings]:
    """A lakehouse of its own with short bounds; what runs in it at the end is killed."""
    settings = Settings(
        root=tmp_path / "root", jars=from_environment().jars, tables=SENSORS, spark_conf=quick_jvm,
        max_offsets_per_trigger=30_000, heartbeat_within="6 seconds", restarts=4,
    )  # fmt: skip
    yield settings
    for folder in (settings.root / "_jobs").glob("*"):
        supervisor.stop(settings, folder.name, now=True)
    kafka_broker.stop(settings)


def healed(
    settings: Settings, pipeline: str, before: progress.JobStatus, why: str
) -> progress.JobStatus:
    """Waits for another process at work; the last restart is for that reason."""

    def at_work() -> bool:
        now = supervisor.status(settings, pipeline)
        return now.pid != before.pid and now.state == "running"

    awaited(at_work, f"healed after: {why}")
    last = next(e for e in reversed(desired.history(settings, pipeline)) if e.what == "restarted")
    assert why in last.why and last.counted, last
    assert not progress.is_alive(before.pid, before.process_started) and not progress.is_alive(
        before.jvm, before.jvm_started
    )
    return supervisor.status(settings, pipeline)


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_stopped_and_overtaken_it_goes_on_and_every_row_is_there_once(settings, spark):
    kafka_broker.start(settings, jars.resolve(settings.jars))
    sent = produce(settings, 0, 10)
    first = supervisor.start(settings, "sensors", wait=120, by="a test")
    with supervised(settings, "sensors"):
        awaited(lambda: arrived(settings, "sensor_readings") > 0, "first batch recorded")
        os.kill(first.pid, signal.SIGKILL)
        second = healed(settings, "sensors", first, "its process died")

        sent += produce(settings, 10, 20)
        psutil.Process(second.jvm).kill()
        third = healed(settings, "sensors", second, "Spark's JVM ended, killed or out of memory")

        sent += produce(settings, 20, 30)
        os.kill(third.pid, signal.SIGSTOP)
        fourth = healed(settings, "sensors", third, "no sign of life for")
        # it was killed before the other started: it cannot wake up
        with pytest.raises(ProcessLookupError):
            os.kill(third.pid, signal.SIGCONT)

        assert [first.epoch, second.epoch, third.epoch, fourth.epoch] == [1, 2, 3, 4]
        # as if it had slept while another took over, without any lock
        winner = lease.Holder(5, 1, 0.0, progress.now())
        log = job_logs.log_path(settings, "sensors")
        replace_file(layout.job_file(settings, "sensors", "epoch.json"), asdict(winner))
        awaited(
            lambda: not progress.is_alive(fourth.pid, fourth.process_started), "the loser ends", 30
        )
        logs = [log, log.with_suffix(".log.1")]  # the next process may have begun its own
        assert any(
            "pid=1 since" in each.read_text() and "runs it now" in each.read_text()
            for each in logs
            if each.exists()
        )
        healed(settings, "sensors", fourth, "its process died")
        awaited(lambda: arrived(settings, "sensor_readings") >= sent, "all recorded")
        stopped = supervisor.stop(settings, "sensors", by="a test")
        assert stopped.state == "stopped" and stopped.epoch == 6
        assert {q.dropped_by_spark for q in stopped.queries} == {0}
    assert not supervisor.status(settings, "sensors").alive, "it stays stopped"

    session = Session(settings, catalog.load(settings), spark)
    every_offset_once(session, sent)
    the_oracle_agrees(session)
    certificate = reconciliation.reconcile(session, session.catalog.table("sensor_averages"))
    assert certificate.verdict == "EQUAL" and certificate.rows_in_table > 100, certificate


def test_whoever_supervises_looks_again_at_once_when_a_process_ends_or_he_is_to_end(settings):
    stopping = Stop()
    with subprocess.Popen(["sleep", "600"]) as process:
        born = processes.started(process.pid)
        desired.note(
            settings, "sensors", Event(progress.now(), "started", "a test", process.pid, born)
        )
        threading.Timer(0.5, process.kill).start()
        assert not control_loop.wait(settings, ["sensors"], stopping, every=600)
        assert process.wait() == -signal.SIGKILL
    threading.Timer(0.5, stopping.set).start()  # of one that is gone already nothing is to be seen
    assert control_loop.wait(settings, ["sensors"], stopping, every=600)


KILLED_AT = """
import os, signal, sys
from itertools import count
from streaming_jobs import driver

checked, times = driver.Job._guard, count(1)

def guard(job, ends, point):
    checked(job, ends, point)
    if point == sys.argv[1] and next(times) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

driver.Job._guard = guard
driver.main(["sensors"])
"""


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_killed_at_each_commit_point_every_row_is_there_once(settings, spark):
    settings = replace(settings, max_offsets_per_trigger=10_000)
    kafka_broker.start(settings, jars.resolve(settings.jars))
    sent = 0
    for number, point in enumerate(COMMIT_POINTS):
        if number < 3:
            sent += produce(settings, 10 * number, 10 * number + 10)
        command = [sys.executable, "-c", KILLED_AT, point]
        killed = subprocess.run(command, env=os.environ | to_environment(settings), timeout=120)
        assert killed.returncode == -signal.SIGKILL, point
    supervisor.start(settings, "sensors", wait=120)
    awaited(lambda: arrived(settings, "sensor_readings") >= sent, "all recorded")
    supervisor.stop(settings, "sensors")
    session = Session(settings, catalog.load(settings), spark)
    every_offset_once(session, sent)
    the_oracle_agrees(session)


ORDERS = '''
import time

from lakehouse import ingest_table, kafka, row_table
from pyspark.sql import functions as F

order_topic = kafka("orders", schema="n BIGINT NOT NULL, at TIMESTAMP NOT NULL")

@ingest_table(layer="bronze", event_time="at", delay="1 second")
def orders(order_topic):
    return order_topic

def double(n):
    time.sleep(600 if n == 99 else 0)
    return n * 2

@row_table(layer="silver")
def doubled(orders):
    return orders.withColumn("double", F.udf(double, "bigint")("n"))

@row_table(layer="silver")
def remainders(orders):
    return orders.withColumn("remainder", F.expr("REMAINDER"))
'''  # fmt: skip


@pytest.fixture
def orders(tmp_path, monkeypatch) -> Path:
    """The file of a pipeline's module, importable here and in processes started from here."""
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "modules"), os.environ.get("PYTHONPATH", "")])
    )
    path = tmp_path / "modules" / "orders_of_a_test.py"
    path.parent.mkdir()
    path.write_text(textwrap.dedent(ORDERS).replace("REMAINDER", "n % (n - 13)"))
    yield path
    sys.modules.pop(path.stem, None)


@pytest.mark.turn(2)
@pytest.mark.slow
def test_a_poison_batch_parks_its_query_and_one_that_hangs_has_its_process_replaced(
    settings, orders
):
    settings = replace(settings, tables=(orders.stem,), query_restarts=1, batch_within="10 seconds")
    kafka_broker.start(settings, jars.resolve(settings.jars))
    kafka_broker.ensure_topics(settings, {"orders": 1})
    name = orders.stem

    def send(*numbers: int) -> None:
        producer = kafka.Producer(client_config(settings))
        for n in numbers:
            producer.produce("orders", json.dumps({"n": n, "at": "2026-01-01T00:00:00Z"}))
        assert producer.flush(30) == 0

    def query(table: str) -> progress.QueryStatus:
        return next(q for q in supervisor.status(settings, name).queries if q.table == table)

    send(1, 2)
    first = supervisor.start(settings, name, wait=120, by="a test")
    awaited(lambda: arrived(settings, "remainders") == 2, "two rows")
    send(13)
    awaited(lambda: supervisor.status(settings, name).state == "degraded", "the query is paused")
    send(14)
    awaited(lambda: arrived(settings, "doubled") == 4, "the other query goes on")
    paused = query("remainders")
    assert (paused.state, paused.restarts, paused.active) == ("paused", 1, False)
    assert "REMAINDER_BY_ZERO" in paused.error or "by zero" in paused.error
    assert (
        paused.offsets.startswith(f"batch {paused.batch + 1}, offsets from {{")
        and "reservoirVersion" in paused.offsets
    )

    os.kill(first.pid, signal.SIGKILL)
    awaited(lambda: control_loop.step(settings, name).action == "start", "healed")
    second = supervisor.await_running(settings, name, supervisor.identity(settings, name)[0], 120)
    assert second.state == "degraded" and query("remainders").error == paused.error, (
        "nobody has asked for it again"
    )

    orders.write_text(orders.read_text().replace("n % (n - 13)", "try_mod(n, n - 13)"))
    # in a process that has the mended module
    accept = [
        sys.executable,
        "-P",
        "-m",
        "lakehouse",
        "table",
        "accept",
        "remainders",
    ]
    accepted = subprocess.run(
        accept, env=os.environ | to_environment(settings), capture_output=True, text=True
    )
    assert accepted.returncode == 0 and "try_mod" in accepted.stdout, accepted.stderr
    sys.modules.pop(orders.stem)  # and this process imports it again
    _, rescaled = rescaling.rescale(settings, name, wait=120, by="a test")  # a restart, and more
    assert rescaled == [], "no table has a state of Spark's"
    awaited(lambda: arrived(settings, "remainders") == 4, "what was left over is caught up with")
    assert (
        supervisor.status(settings, name).state == "running"
        and query("remainders").state == "running"
    )

    send(99)  # and a micro-batch that never ends
    hanging = supervisor.status(settings, name)
    decisions = []
    awaited(
        lambda: (
            decisions.append(control_loop.step(settings, name)) or decisions[-1].action == "replace"
        ),
        "replaced",
    )
    assert "a micro-batch of doubled has run for 1" in decisions[-1].why
    assert not hanging.alive and not progress.is_alive(hanging.jvm, hanging.jvm_started)


@pytest.mark.slow
def test_a_crash_loop_is_given_up_and_an_outage_is_waited_for(settings, orders):
    """Without a JVM until the broker is there: what is wrong is found before one is started."""
    settings, name = replace(settings, tables=(orders.stem,), restarts=2), orders.stem
    catalog.load(settings)  # here the module is sound, and stays so
    sound = orders.read_text()
    orders.write_text('raise OSError("broken on purpose")')
    desired.wish(settings, name, "running", "a test")
    awaited(lambda: control_loop.step(settings, name).action == "break", "given up")
    what = [(e.what, e.counted) for e in desired.history(settings, name)]
    assert what == [
        ("started", False),
        ("restarted", True),
        ("restarted", True),
        ("crash_loop", False),
    ]
    status = supervisor.status(settings, name)
    assert (
        status.state == "crash_loop"
        and "broken on purpose" in status.error
        and f"lakehouse stream start {name}" in status.error
    )
    assert control_loop.step(settings, name).action == "nothing", "until somebody asks for it again"

    orders.write_text(sound)
    with pytest.raises(JobError, match="none is running"):
        supervisor.start(settings, name, by="a test")
    attempts = []
    awaited(
        lambda: len(attempts) == 3 or attempted(settings, name, attempts),
        "three attempts without a broker",
    )
    assert [e.counted for e in attempts] == [False] * 3
    kafka_broker.start(settings, jars.resolve(settings.jars))
    kafka_broker.ensure_topics(settings, {"orders": 1})

    def running() -> bool:
        control_loop.step(settings, name)
        return supervisor.status(settings, name).state == "running"

    awaited(running, "it runs once the broker is back")


def attempted(settings: Settings, name: str, attempts: list[desired.Event]) -> bool:
    if control_loop.step(settings, name).action == "start":
        attempts.append(desired.history(settings, name)[-1])
    return False


def test_a_writer_that_sleeps_while_another_takes_over_writes_nothing(spark, tmp_path):
    stage = Stage(spark, tmp_path / "root", sensors)
    record = stage.session.catalog.table("sensor_readings")
    reading = {
        "sensor_id": "sensor-1",
        "event_time": "2026-01-01T00:00:00Z",
        "temperature_f": "50.00",
    }
    row = (b"key", json.dumps(reading).encode(), 0, 0, datetime(2030, 1, 1, tzinfo=UTC))
    columns = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32()), ("offset", pa.int64()),
                         ("timestamp", pa.timestamp("us", "UTC"))])  # fmt: skip
    records = spark.createDataFrame(
        pa.Table.from_pylist([dict(zip(columns.names, row, strict=True))], columns)
    )
    log = BatchLog(BEGINNING, datetime(2030, 1, 1, tzinfo=UTC), {"sensor-readings": {"0": 1}})
    with lease.acquire(stage.session.settings, "sensors") as turn:
        asleep = stream_run(
            stage.session,
            table_state.read(stage.session, record),
            lambda point: turn.check() if point == "begin" else None,
        )
        # a file system that does not lock
        layout.job_file(stage.session.settings, "sensors", "lease").unlink()
        with lease.acquire(stage.session.settings, "sensors"):
            stage.feed("sensor_readings", [reading])
            with pytest.raises(JobError, match="runs it now"):
                ingest.ingest_batch(asleep, raw_records(asleep, {"sensor_topic": records}), 0, log)
    assert stage.rows("sensor_readings").count() == 1
    unchecked = replace(asleep, reached=lambda point: None)
    with pytest.raises(
        CommitError, match="has committed batch 0 already, so another process writes the table"
    ):
        ingest.ingest_batch(unchecked, raw_records(asleep, {"sensor_topic": records}), 0, log)
    assert stage.rows("sensor_readings").count() == 1, "the table's own commit refuses it, too"
