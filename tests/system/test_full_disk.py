"""The disk is full for a while: the job ends, is not started before there is room, and has lost and doubled nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lakehouse.declare import catalog
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.session import Session
from support import TESTS
from support.sensors_job import every_offset_once, the_oracle_agrees


@pytest.fixture
def settings(tmp_path, quick_jvm) -> Iterator[Settings]:
    """A lakehouse whose broker is elsewhere: Kafka does not outlive a full disk."""
    beside = Settings(root=tmp_path / "broker", jars=from_environment().jars)
    servers = kafka_broker.start(beside, jars.resolve(beside.jars)).bootstrap_servers
    (tmp_path / "root").mkdir()
    yield replace(
        beside, root=tmp_path / "root", bootstrap_servers=servers, tables=("lakehouse.examples.sensors.tables",),
        spark_conf=quick_jvm, max_offsets_per_trigger=30_000,
    )  # fmt: skip
    kafka_broker.stop(beside)


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_full_disk_is_waited_for_and_every_row_is_there_once(settings, tmp_path, spark):
    apart = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else [])]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip(
            "this system lets its users mount nothing, not even in a namespace of their own"
        )
    ended = subprocess.run(
        [*apart, sys.executable, "-m", "support.full_disk", str(tmp_path / "kept")], cwd=TESTS,
        env=os.environ | to_environment(settings), stdout=subprocess.PIPE, text=True, timeout=550,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    sent = json.loads(ended.stdout.splitlines()[-1])["sent"]

    kept = replace(settings, root=tmp_path / "kept")
    session = Session(kept, catalog.load(kept), spark)
    every_offset_once(session, sent)
    the_oracle_agrees(session)
    certificate = reconciliation.reconcile(session, session.catalog.table("sensor_averages"))
    assert certificate.verdict == "EQUAL" and certificate.rows_in_table > 100, certificate
