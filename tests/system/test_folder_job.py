"""A job that reads a folder is killed while files are put into it: each record is in the table once."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehouse.settings import Settings, from_environment, to_environment
from support.sensors_job import awaited

MODULE = """
from pyspark.sql import functions as F

from lakehouse import folder, ingest_table, tumbling, window_table

reading_files = folder(
    "incoming", schema="n BIGINT NOT NULL, at TIMESTAMP NOT NULL", pattern="*.json*", settle="1 second"
)


@ingest_table(layer="bronze", event_time="at", delay="1 hour")
def readings(reading_files):
    return reading_files


@window_table(layer="gold", window=tumbling("1 hour"))
def per_hour(readings):
    return readings.groupBy("window").agg(F.count("*").alias("rows"))
"""
FILES, ROWS = 2_000, 5  # rows of a file, and a line that is none
KILLS = 3


def line(n: int) -> str:
    return f'{{"n": {n}, "at": "2026-01-01T00:00:{n % 60:02}Z"}}\n'


def put(incoming: Path, number: int) -> None:
    """Three of four files are moved to their place, the others written there in two pieces."""
    lines = [*(line(ROWS * number + i) for i in range(ROWS)), f"no JSON {number}\n"]
    path = incoming / f"{number % 7}" / f"{number:05}.json"
    if number % 4:
        beside = path.with_suffix(".part")
        beside.write_text("".join(lines))
        beside.rename(path)
        return
    with path.open("w") as file:
        file.write("".join(lines)[:50])
        file.flush()
        time.sleep(0.05)
        file.write("".join(lines)[50:])


def fill(incoming: Path, done: threading.Event) -> None:
    for number in range(FILES):
        put(incoming, number)
        if number % 3 == 0:
            time.sleep(0.02)
    done.set()


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(0)
@pytest.mark.timeout(600)
def test_a_job_that_is_killed_has_each_record_of_two_thousand_files_once(tmp_path, quick_jvm):
    (tmp_path / "folder_shop.py").write_text(MODULE)
    incoming = tmp_path / "incoming"
    for below in range(7):
        (incoming / f"{below}").mkdir(parents=True)
    settings = Settings(
        root=tmp_path / "root",
        tables=("folder_shop",),
        jars=from_environment().jars,
        spark_conf=quick_jvm,
        shuffle_partitions=1,
        max_offsets_per_trigger=500,
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | to_environment(settings) | {"PYTHONPATH": path}

    def job(*arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "streaming_jobs.driver", "folder_shop", *arguments]
        return subprocess.Popen(command, env=environment, start_new_session=True)

    def there(side: str = "") -> Counter[int]:
        table = settings.root / "bronze" / f"readings{side}"
        if not (table / "_delta_log").is_dir():
            return Counter()
        rows = DeltaTable(str(table)).to_pyarrow_table(columns=["_arrival"])
        return Counter(each["offset"] for each in rows["_arrival"].to_pylist())

    done = threading.Event()
    writer = threading.Thread(target=fill, args=(incoming, done), daemon=True)
    writer.start()
    for _ in range(KILLS):
        before, process = sum(there().values()), job()
        awaited(lambda before=before: sum(there().values()) > before, "rows", 240)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert done.wait(120)
    assert job("--available-now").wait(300) == 0
    found = there() + there("__quarantine")
    assert found == Counter(range(FILES * (ROWS + 1))), "each offset once"
    rows = DeltaTable(str(settings.root / "bronze" / "readings")).to_pyarrow_table(columns=["n"])
    assert sorted(rows["n"].to_pylist()) == list(range(FILES * ROWS))
    for command, shown in (("topic check", "incoming"), ("table quarantine", ".json:6")):
        asked = subprocess.run(
            [sys.executable, "-m", "lakehouse", *command.split(), "readings"],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert asked.returncode == 0 and shown in asked.stdout, asked
