"""The same tables on a Spark cluster: a master and a worker in processes of their own; an executor killed for real."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from lakehouse.declare import catalog
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.session import Session
from streaming_jobs.supervision import supervisor
from support import ROOT
from support.cluster import LIMIT, Cluster
from support.sensors_job import arrived, awaited, every_offset_once, produce, the_oracle_agrees

pytestmark = [pytest.mark.slow, pytest.mark.parallel, pytest.mark.turn(0), pytest.mark.timeout(800)]


@pytest.fixture
def settings(tmp_path, cluster, quick_jvm) -> Iterator[Settings]:
    """As the docs have it, with executors that compile like the tests' drivers do."""
    docs = (ROOT / "docs" / "operate" / "supervision.md").read_text()
    given = dict(re.findall(r"""^export (LAKEHOUSE_SPARK_\w+)=["'](.*)["']$""", docs, re.MULTILINE))
    assert given["LAKEHOUSE_SPARK_MASTER"].startswith("spark://")
    shown = from_environment(given)
    quick = quick_jvm | {
        "spark.executor.defaultJavaOptions": quick_jvm["spark.driver.defaultJavaOptions"]
    }
    here = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.cores.max": "2",
    }
    settings = Settings(
        root=tmp_path / "root", jars=from_environment().jars, tables=("lakehouse.examples.sensors.tables",),
        spark_master=cluster.address, spark_conf=dict(shown.spark_conf) | here | quick, max_offsets_per_trigger=10_000,
    )  # fmt: skip
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    supervisor.stop(settings, "sensors", now=True)
    kafka_broker.stop(settings)


def test_an_executor_is_killed_every_row_is_there_once_and_the_reconcile_runs_there_too(
    settings, cluster, spark
):
    sent = produce(settings, 0, 10)
    first = supervisor.start(settings, "sensors", wait=LIMIT)
    awaited(lambda: arrived(settings, "sensor_readings") == sent, "the first lot", LIMIT)
    sent += produce(settings, 10, 20)
    (executor,) = executors(cluster)
    executor.kill()
    sent += produce(settings, 20, 30)
    awaited(
        lambda: arrived(settings, "sensor_readings") == sent,
        "all recorded, by another executor",
        LIMIT,
    )
    assert [p.pid for p in executors(cluster)] != [executor.pid]
    stopped = supervisor.stop(settings, "sensors")
    assert stopped.pid == first.pid and {q.dropped_by_spark for q in stopped.queries} == {0}
    session = Session(settings, catalog.load(settings), spark)
    every_offset_once(session, sent)
    the_oracle_agrees(session)
    certificate = subprocess.run(
        [sys.executable, "-m", "lakehouse", "reconcile", "run", "sensor_averages"], env=os.environ | to_environment(settings),
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert certificate.returncode == 0 and "EQUAL" in certificate.stdout, (
        certificate.stdout + certificate.stderr
    )


def executors(cluster: Cluster) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(cluster.worker).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # executors start short-lived ones themselves
            if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline():
                found.append(process)
    return found
