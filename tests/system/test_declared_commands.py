"""What commands and jobs say of a declaration that changed."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.settings import Resources, Settings, to_environment
from support import TESTS

MODULE = """
from lakehouse import ingest_table, kafka, tumbling, window_table

thing_topic = kafka("things", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def things(thing_topic):
    return thing_topic


@window_table(layer="gold", window=tumbling("1 hour"))
def things_per_hour(things):
    return things.groupBy("window").count()
"""


@pytest.fixture
def shop(tmp_path) -> tuple[Settings, Path]:
    """A lakehouse whose queries have begun, and the module of its tables."""
    settings, file = (
        Settings(root=tmp_path / "root", tables=("declared_shop",)),
        tmp_path / "declared_shop.py",
    )
    file.write_text(MODULE)
    python = f"""
import sys
sys.path.append({str(TESTS)!r})
from lakehouse.settings import from_environment
from lakehouse.storage.lakehouse import load
from support import starts
from support.lines import note_read
lakehouse = load(from_environment())
for table in lakehouse.catalog:
    starts.begin(lakehouse, table)
    (lakehouse.settings.root / "_checkpoints" / table.name / "1" / "offsets").mkdir(parents=True)
    note_read(lakehouse.settings, table, 1, table.inputs if table.kind.is_derived else ())
"""
    done = run(settings, file, "-c", python)
    assert done.returncode == 0, done.stderr
    return settings, file


def run(settings: Settings, file: Path, *arguments: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(file.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | to_environment(settings) | {"PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=file.parent,
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_a_changed_window_is_refused_before_a_jvm_starts_and_shown_by_tables(shop):
    settings, file = shop
    file.write_text(MODULE.replace("1 hour", "2 hours"))
    told = "table=things_per_hour, window=tumbling, 2:00:00: its checkpoint was made with tumbling, 1:00:00"
    for command in (
        "lakehouse stream start",
        "lakehouse stream restart",
        "streaming_jobs.driver declared_shop",
    ):
        done = run(settings, file, "-m", *command.split())
        assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, (
            done.stderr
        )
    assert not (settings.root / "_jobs" / "declared_shop" / "driver.log").exists(), (
        "no process was started"
    )
    shown = run(settings, file, "-m", "lakehouse", "table", "list", "--json")
    assert shown.returncode == 0 and len(shown.stdout.splitlines()) == 2 and told in shown.stderr
    done = run(settings, file, "-m", "lakehouse", "table", "accept", "things_per_hour")
    assert done.returncode == 2 and "declare it under another name" in done.stderr


@pytest.mark.slow
@pytest.mark.parallel
def test_shuffle_partitions_that_change_are_said_by_start_and_in_the_log_of_the_job(shop):
    settings, file = shop
    checkpoint = settings.root / "_checkpoints" / "things_per_hour" / "1"
    (checkpoint / "state").mkdir()
    noted = {
        "batchWatermarkMs": 0,
        "batchTimestampMs": 0,
        "conf": {"spark.sql.shuffle.partitions": "2"},
    }
    (checkpoint / "offsets" / "7").write_text(f"v1\n{json.dumps(noted)}\n{{}}")
    other = replace(settings, resources={"declared_shop": Resources(shuffle_partitions=6)})
    told = "warning: table=things_per_hour, shuffle_partitions=6: its state is in 2 partitions"
    # both end, for there is no broker
    for command in (
        "lakehouse stream start --wait 60",
        "streaming_jobs.driver declared_shop",
    ):
        done = run(other, file, "-m", *command.split())
        assert told in done.stderr and "lakehouse broker start" in done.stderr, done.stderr
    assert told not in run(settings, file, "-m", "streaming_jobs.driver", "declared_shop").stderr


@pytest.mark.slow
@pytest.mark.parallel
def test_a_changed_delay_is_accepted_by_a_command(shop):
    settings, file = shop
    assert (
        "nothing to accept"
        in run(settings, file, "-m", "lakehouse", "table", "accept", "things").stderr
    )
    file.write_text(MODULE.replace("5 seconds", "9 seconds"))
    assert (
        "`lakehouse table accept things`"
        in run(settings, file, "-m", "lakehouse", "table", "list").stderr
    )
    done = run(settings, file, "-m", "lakehouse", "table", "accept", "things")
    assert done.returncode == 0 and "delay" in done.stdout, done.stderr
    assert "things" not in run(settings, file, "-m", "lakehouse", "table", "list").stderr
