"""A backfill that is killed goes on where it was."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from deltalake import DeltaTable

from lakehouse.examples.sensors import tables as sensors
from lakehouse.ranges import Range
from lakehouse.settings import from_environment, to_environment
from lakehouse.storage.delta.digest import digest
from lakehouse.testing import Stage, assert_stream_equals_batch
from support.sensors_job import awaited

VALID = "valid_readings"
START = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = 14  # it is killed after three or four of them


def at(hour: int, minute: int = 0) -> datetime:
    return START + timedelta(hours=hour, minutes=minute)


def reading(hour: int, minute: int, sensor: str = "sensor-1") -> dict[str, str]:
    return {
        "sensor_id": sensor,
        "event_time": at(hour, minute).isoformat(),
        "temperature_f": "50.00",
    }


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_backfill_that_is_killed_goes_on_where_it_was(spark, tmp_path, quick_jvm):
    stage = Stage(spark, tmp_path / "root", sensors)
    stage.feed(
        "sensor_readings", [reading(h, m, f"sensor-{m}") for h in range(HOURS) for m in (0, 20, 40)]
    )
    stage.advance("sensor_readings", reading(HOURS + 1, 0))
    stage.run(VALID)
    session = stage.session
    whole, table = digest(stage.rows(VALID)), session.catalog.table(VALID)
    DeltaTable(str(session.path(table))).delete("sensor_id = 'sensor-20'")
    settings = replace(session.settings, jars=from_environment().jars, spark_conf=quick_jvm)
    command = [
        sys.executable,
        "-m",
        "batch_jobs",
        "backfill",
        VALID,
        "--start",
        "2026-01-01",
        "--end",
        f"2026-01-01T{HOURS}",
        "--json",
    ]

    def done() -> int:
        return sum(c.role == "batch" for c in session.commit_log(table).rewriting())

    first = subprocess.Popen(
        command, env=os.environ | to_environment(settings), start_new_session=True
    )
    awaited(lambda: done() >= 3, "some partitions are published")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = done()
    assert before < HOURS, "killed too late to say anything"

    again = subprocess.run(
        command, env=os.environ | to_environment(settings), capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    told = [json.loads(line) for line in again.stdout.splitlines()]
    outcomes = {
        kind: [t for t in told if t["outcome"] == kind]
        for kind in ("rewritten", "unchanged", "done before")
    }
    assert len(outcomes["done before"]) == before
    assert len(outcomes["rewritten"]) + len(outcomes["unchanged"]) == HOURS - before
    assert len(outcomes["unchanged"]) <= 1, "at most the one that was published and not told"
    assert digest(stage.rows(VALID)) == whole
    assert_stream_equals_batch(stage, VALID, Range(at(0), at(HOURS)))
