"""A batch job is a process: what it refuses, and how it ends."""

import os
import shutil
import subprocess
import sys

AVERAGES = "sensor_averages"


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "batch_jobs", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


def test_a_job_is_a_process_that_refuses_before_it_starts_spark(filled, tmp_path):
    root = shutil.copytree(filled, tmp_path / "root")
    run = process(
        "backfill", AVERAGES, "--start", "2026-01-01T02:00:00Z", "--end", "2026-01-01T09:00:00Z",
        LAKEHOUSE_ROOT=str(root), LAKEHOUSE_TABLES="lakehouse.examples.sensors.tables", JAVA_HOME="/none",
    )  # fmt: skip
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr.startswith(
        "error: table=sensor_averages, range end=2026-01-01T09:00:00Z: it crosses the frontier"
    )


def test_a_crash_is_never_taken_for_a_verdict(tmp_path):
    (tmp_path / "broken_tables.py").write_text("1 / 0")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    run = process("reconcile", "run", AVERAGES, LAKEHOUSE_TABLES="broken_tables", PYTHONPATH=path)
    assert run.returncode == 2 and "ZeroDivisionError" in run.stderr
