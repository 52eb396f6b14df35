"""Updates of many partitions: few Delta commits, a line each, only the windows touched; and what can never arrive is said."""

import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from assets import schedules
from batch_jobs import commands
from lakehouse import expect, ingest_table, kafka, row_table, tumbling, window_table
from lakehouse.batch import batch_state, publish
from lakehouse.declare.columns import ORIGIN
from lakehouse.storage.delta import delta_writer
from lakehouse.testing import Stage, assert_stream_equals_batch

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = 30

click_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@row_table(
    layer="silver",
    late="update",
    expectations=[expect.column_values_to_be_between("value", max_value=1000)],
)
def valid_clicks(clicks: DataFrame) -> DataFrame:
    return clicks


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"], late="update")
def sums(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=tumbling("1 hour"), keys=["user"], late="update")
def hourly(valid_clicks: DataFrame) -> DataFrame:
    return valid_clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


def at(minutes: float, user: str = "a", value: int = 1) -> dict:
    return {"user": user, "at": (START + timedelta(minutes=minutes)).isoformat(), "value": value}


@pytest.fixture(scope="module")
def whole(spark, tmp_path_factory) -> Stage:
    """Thirty closed hours, and rows late for a window of each of them but the fourth to the ninth."""
    stage = Stage(spark, tmp_path_factory.mktemp("together") / "root", HERE)
    stage.feed("clicks", [at(60 * hour + minute) for hour in range(HOURS) for minute in (1, 31)])
    stage.advance("clicks", at(60 * HOURS + 1))
    stage.feed(
        "clicks", [at(60 * hour + 2, value=100) for hour in range(HOURS) if not 3 <= hour < 9]
    )
    stage.advance("clicks", at(60 * HOURS + 2))
    stage.run("sums", "valid_clicks", "hourly")
    return stage


@pytest.fixture
def stage(whole, tmp_path) -> Stage:
    root = shutil.copytree(whole.session.settings.root, tmp_path / "root")
    copy = Stage.__new__(Stage)
    copy.__dict__.update(whole.__dict__)
    copy.session = replace(whole.session, settings=replace(whole.session.settings, root=root))
    return copy


def version(stage: Stage, name: str) -> int:
    return delta_writer.version(stage.session.path(stage.session.catalog.table(name)))


def command(stage: Stage, *arguments: str):
    environment = {"LAKEHOUSE_ROOT": str(stage.session.settings.root), "LAKEHOUSE_TABLES": __name__}
    return CliRunner().invoke(commands.app, ["update", *arguments], env=environment)


def test_many_partitions_are_one_commit_of_the_windows_touched_and_a_line_each(stage):
    before = version(stage, "sums")
    lines = stage.update("sums")
    assert version(stage, "sums") == before + 1 and {line.version for line in lines} == {before + 1}
    late = [hour for hour in range(HOURS) if not 3 <= hour < 9]
    assert [line.start for line in lines] == [START + timedelta(hours=hour) for hour in late]
    assert {line.end - line.start for line in lines} == {timedelta(hours=1)}
    assert {line.written for line in lines} == {1}, "one window of each hour"
    rows = {
        (r.window.start.astimezone(UTC) - START, r[ORIGIN], r.value)
        for r in stage.rows("sums").collect()
    }
    for hour in range(HOURS):
        first = (
            (timedelta(hours=hour), "batch", 101)
            if hour in late
            else (timedelta(hours=hour), "stream", 1)
        )
        assert first in rows and (timedelta(hours=hour, minutes=30), "stream", 1) in rows
    assert stage.update("sums") == [] and version(stage, "sums") == before + 1, (
        "nothing is left to do"
    )
    assert_stream_equals_batch(stage, "sums")


@pytest.mark.slow
@pytest.mark.parallel
def test_what_reads_an_updated_table_follows_in_few_commits_too(stage):
    before, below = version(stage, "valid_clicks"), version(stage, "hourly")
    assert (
        len(stage.update("valid_clicks")) == HOURS - 6
        and version(stage, "valid_clicks") == before + 1
    )
    assert len(stage.update("hourly")) == HOURS - 6
    assert version(stage, "hourly") == below + 2, "two ranges without a gap"
    for name in ("valid_clicks", "hourly"):
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_late_row_that_is_put_aside_has_its_whole_hour_computed(stage):
    stage.feed("clicks", [at(63, value=5_000), at(123, value=7)])
    stage.advance("clicks", at(60 * HOURS + 3))
    stage.run("valid_clicks")
    stage.update("valid_clicks")
    assert stage.rows("valid_clicks", "quarantine").count() == 1
    assert stage.rows("valid_clicks").where("value = 7").count() == 1
    assert_stream_equals_batch(stage, "valid_clicks")
    stage.feed("clicks", [at(64, value=8)])
    stage.advance("clicks", at(60 * HOURS + 4))
    stage.run("valid_clicks")
    assert len(stage.update("valid_clicks")) == 1, "beside a row quarantined"
    assert_stream_equals_batch(stage, "valid_clicks")


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parametrize("told", [0, 5], ids=["no line", "some lines"])
def test_a_crash_between_the_commit_and_its_lines_loses_none_of_them(stage, monkeypatch, told):
    table = stage.session.catalog.table("sums")
    append, left = publish.Session.commit_log, [told]

    class Crash(Exception):
        pass

    class Dying:
        def __init__(self, commit_log) -> None:
            self.commit_log = commit_log

        def append(self, *commits, recorded: bool) -> None:
            first = commits[: left[0]]
            left[0] -= len(first)
            if first:
                self.commit_log.append(*first, recorded=recorded)
            if first != commits:
                raise Crash

        def __getattr__(self, name: str):
            return getattr(self.commit_log, name)

    with monkeypatch.context() as dying:
        dying.setattr(publish.Session, "commit_log", lambda session, of: Dying(append(session, of)))
        with pytest.raises(Crash):
            stage.update("sums")
    stage.feed("clicks", [at(5)])
    stage.advance("clicks", at(60 * HOURS + 3))
    stage.run("sums")
    stage.update("sums")
    found = [
        line
        for line in stage.session.commit_log(table).rewriting()
        if line.role == "batch" and line.version > 0
    ]
    hours = [line.start for line in found]
    assert sorted(set(hours)) == [
        START + timedelta(hours=hour) for hour in range(HOURS) if not 3 <= hour < 9
    ]
    assert hours.count(START) == 2 and len(hours) == HOURS - 6 + 1, (
        "each line once, and the hour that was updated again"
    )
    assert batch_state.read(stage.session, table).dirty == []
    assert_stream_equals_batch(stage, "sums")


def test_what_a_table_above_keeps_out_is_said(stage):
    assert "cannot reach" not in command(stage, "--dry-run").stderr
    catalog = stage.session.catalog
    above = replace(catalog.table("valid_clicks"), late="side_output")
    withholding = replace(catalog, tables=catalog.tables | {"valid_clicks": above})
    (line,) = schedules_said(stage, withholding)
    assert line == (
        "table=hourly, late='update': late rows cannot reach it, because valid_clicks, which it reads, keeps them out "
        "(late='side_output'; 24 rows so far); declare valid_clicks late='update', too"
    )


def schedules_said(stage: Stage, catalog) -> list[str]:
    from batch_jobs.update import withheld

    for name in ("sums", "hourly"):
        stage.update(name)
    schedule = schedules.merge_late_rows(stage.session.settings, catalog)
    tick = schedule.evaluate_tick(
        dg.build_schedule_context(scheduled_execution_time=datetime.now(UTC))
    )
    said = withheld(replace(stage.session, catalog=catalog))
    assert said[0] in tick.skip_message, tick
    return said


def test_the_command_names_what_can_never_arrive(stage, tmp_path, monkeypatch):
    (tmp_path / "withholding.py").write_text(
        f"from {__name__} import clicks, click_topic, hourly\n"
        "from lakehouse import row_table\n\n\n"
        "@row_table(layer='silver', late='drop')\n"
        "def valid_clicks(clicks):\n"
        "    return clicks\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    environment = {
        "LAKEHOUSE_ROOT": str(stage.session.settings.root),
        "LAKEHOUSE_TABLES": "withholding",
    }
    asked = CliRunner().invoke(commands.app, ["update", "--json"], env=environment)
    assert asked.exit_code == 0 and asked.stdout == "", asked.output
    assert (
        "cannot reach it, because valid_clicks, which it reads, keeps them out (late='drop'; 24 rows so far)"
        in asked.stderr
    )
