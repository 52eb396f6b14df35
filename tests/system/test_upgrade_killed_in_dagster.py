"""Dagster's jobs that fill and exchange the versions of a table are killed by SIGKILL, and do the rest when they run again."""

import importlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import JobError
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.versions import interruptions, upgrades
from lakehouse.testing import Stage, assert_stream_equals_batch
from support import ROOT, TESTS
from support.taken_orders import SHOP

NAME = "killed_shop"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The module with a filter of 1 or of 3, imported in place of the one before."""

    def imported(least: int) -> ModuleType:
        folder = tmp_path / str(least)
        folder.mkdir()
        (folder / f"{NAME}.py").write_text(SHOP.replace("LEAST", str(least)))
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, NAME, raising=False)
        return importlib.import_module(NAME)

    return imported


def ids(stage: Stage) -> list[int]:
    return sorted(row["id"] for row in stage.rows("taken").select("id").collect())


def run(settings: Settings, job: str, op: str, *killed: str) -> None:
    config = json.dumps({"ops": {op: {"config": {"table": "taken"}}}})
    environment = os.environ | to_environment(settings)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, TESTS)))
    ended = subprocess.run(
        [sys.executable, "-m", "support.killed_run", job, config, *killed],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == (-signal.SIGKILL if killed else 0), ended.stderr[-4000:]


def hours(settings: Settings, stage: Stage) -> dict[datetime, Commit]:
    """The lines of the batch run that fills the version beside, by the hour; none has two."""
    table = stage.session.catalog.table("taken")
    lines = [c for c in CommitLog(upgrades.beside(settings, table), table) if c.role == "batch"]
    by_hour = {line.span.start: line for line in lines}
    assert len(by_hour) == len(lines)
    return by_hour


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_what_was_killed_goes_on_when_the_job_is_run_again(
    spark: SparkSession, tmp_path: Path, quick_jvm: dict[str, str], shop
):
    stage = Stage(spark, tmp_path / "root", shop(1))
    stage.feed("orders", [order(n, n) for n in range(1, 7)])
    stage.advance("orders", order(9, 9))
    stage.run("taken")
    before = [2, 3, 4, 5, 6, 9, 9]
    assert ids(stage) == before
    table, changed = stage.session.catalog.table("taken"), shop(3)
    settings = replace(
        stage.session.settings,
        module_path=(Path(changed.__file__).parent,),
        jars=from_environment().jars,
        spark_conf=quick_jvm,
    )

    # the rows of the third hour are there, and no line says so
    run(settings, "fill_upgrade", "fill", "append", "3")
    begun = hours(settings, stage)
    assert len(begun) == 2 and ids(stage) == before
    assert upgrades.upgrade(settings, table).state == "filling"
    run(settings, "fill_upgrade", "fill")
    filled = hours(settings, stage)
    assert [hour.hour for hour in sorted(filled)] == [*range(1, 8)], "up to the full hour"
    assert begun.items() <= filled.items(), "none of these once more"

    # the quarantine is exchanged, the table is not
    run(settings, "exchange_versions", "exchange", "exchange", "2")
    assert ids(stage) == before
    with pytest.raises(JobError, match="`lakehouse upgrade promote taken` again"):
        interruptions.check(settings)
    # the rows are, and no line of the commit log
    run(settings, "exchange_versions", "exchange", "append", "1")
    assert ids(stage) == [4, 5, 6, 9, 9]
    with pytest.raises(JobError, match="`lakehouse upgrade promote taken` again"):
        interruptions.check(settings)
    run(settings, "exchange_versions", "exchange")
    interruptions.check(settings)
    assert upgrades.upgrade(settings, table).state == "promoted"

    stage.session = replace(stage.session, catalog=catalog_of([changed]))
    stage.feed("orders", [order(n, 9) for n in (1, 3, 7)])
    stage.advance("orders", order(10, 12))
    stage.run("taken")
    assert ids(stage) == [4, 5, 6, 7, 9, 9, 10, 10]
    assert_stream_equals_batch(stage, "taken")


def order(number: int, hour: int) -> dict[str, object]:
    return {"id": number, "at": f"2026-01-01T{hour:02}:00:00Z"}
