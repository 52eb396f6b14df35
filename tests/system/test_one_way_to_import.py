"""A module of the same name in the current folder is never what runs: not in the job, not in the command, not in a worker."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lakehouse.declare import catalog
from lakehouse.errors import JobError
from lakehouse.settings import Settings, from_environment, to_environment
from streaming_jobs import progress
from streaming_jobs.command_groups import views
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import supervisor
from support import ROOT

TABLES = """
from lakehouse import ingest_table, kafka

topic = kafka("rows", schema="n BIGINT, at TIMESTAMP NOT NULL")

@ingest_table(layer="bronze", event_time="at", delay="1 second")
def rows_of_WHERE(topic):
    return topic

def where(n):
    return "WHERE"
"""
NAME = "tables_of_two_places"


@pytest.fixture
def settings(tmp_path, monkeypatch) -> Settings:
    """Tables on the path; those of another module of that name lie in the current folder."""
    for place in ("path", "here"):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{NAME}.py").write_text(TABLES.replace("WHERE", place))
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, tmp_path / "path"))))
    monkeypatch.syspath_prepend(tmp_path / "path")
    jars = from_environment(required=False).jars
    yield Settings(root=tmp_path / "root", jars=jars, tables=(NAME,))
    sys.modules.pop(NAME, None)


def run(settings: Settings, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | to_environment(settings),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_job_imports_what_the_command_line_does_and_its_status_says_from_where(
    settings, tmp_path
):
    assert "rows_of_path" in run(settings, "-m", "lakehouse", "table", "list", "--json")
    # the broker; by then it has loaded its tables
    with pytest.raises(JobError, match="none is running"):
        supervisor.start(settings, NAME, wait=60, by="a test")
    assert supervisor.status(settings, NAME).code == {NAME: str(tmp_path / "path" / f"{NAME}.py")}


def test_a_job_of_other_code_is_told_of(settings, tmp_path):
    catalog.load(settings)
    me, now = psutil.Process(), progress.now()
    status = JobStatus(
        NAME, me.pid, me.create_time(), 0, 0.0, "running", now, now, code=progress.origins(settings)
    )
    assert views.troubles(settings, NAME, status) == []
    other = replace(status, code={NAME: str(tmp_path / "here" / f"{NAME}.py")})
    (said,) = views.troubles(settings, NAME, other)
    assert (
        str(tmp_path / "here") in said
        and str(tmp_path / "path") in said
        and f"lakehouse stream restart {NAME}" in said
    )


def test_another_package_of_our_name_behind_ours_is_never_what_runs(settings, tmp_path):
    """A folder of modules without `__init__.py`, as ours once was, gives way to a package anywhere on the path."""
    for name in ("lakehouse", "streaming_jobs", "batch_jobs", "assets"):
        (tmp_path / "path" / name).mkdir()
        (tmp_path / "path" / name / "__init__.py").write_text("raise SystemExit('not ours')")
    assert "rows_of_path" in run(settings, "-m", "lakehouse", "table", "list", "--json")
    for name in ("streaming_jobs", "batch_jobs", "assets"):
        where = run(settings, "-P", "-c", f"import {name}; print({name}.__file__)")
        assert Path(where.strip()).parent == ROOT / name


IN_A_WORKER = f"""
import {NAME} as tables
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from pyspark.sql import functions as F

spark = spark_session.create(from_environment(), "a test")
print(tables.where(0), spark.range(1).select(F.udf(tables.where, "string")("id").alias("where")).head().where)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.parallel
def test_a_python_worker_imports_what_its_driver_does(settings):
    assert run(settings, "-P", "-c", IN_A_WORKER).split() == ["path", "path"]
