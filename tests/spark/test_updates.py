"""Late rows under the policy `update`: closed partitions are rewritten by batch runs, the windows touched only."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from assets import definitions, schedules
from batch_jobs import commands
from lakehouse import (
    expect,
    ingest_table,
    kafka,
    row_table,
    session,
    sliding,
    tumbling,
    window_table,
)
from lakehouse.batch import batch_state
from lakehouse.declare.columns import ORIGIN, PARTITION
from lakehouse.reconcile import reconciliation
from lakehouse.storage.delta import delta_writer
from lakehouse.testing import Stage, assert_stream_equals_batch

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

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
    return clicks.withColumn("twice", F.col("value") * 2)


@window_table(layer="gold", window=tumbling("1 minute"), keys=["user"], late="update")
def minutes(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=sliding("20 seconds", "5 seconds"), keys=["user"], late="update")
def sliding_sums(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=session("10 seconds"), keys=["user"], late="update")
def sessions(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=tumbling("1 hour"), keys=["user"], late="update")
def hourly(valid_clicks: DataFrame) -> DataFrame:
    return valid_clicks.groupBy("window", "user").agg(F.sum("twice").alias("twice"))


TABLES = ["valid_clicks", "minutes", "sliding_sums", "sessions", "hourly"]


def at(seconds: float, user: str = "a", value: int = 1) -> dict:
    return {"user": user, "at": (START + timedelta(seconds=seconds)).isoformat(), "value": value}


def verdict(stage: Stage, name: str) -> str:
    return reconciliation.reconcile(stage.session, stage.session.catalog.table(name)).verdict


def dirty(stage: Stage, name: str) -> dict[str, bool]:
    """Partition -> whether it has closed, of what an update would look at."""
    session = stage.session
    return {
        d.partition[-2:]: d.closed
        for d in batch_state.read(session, session.catalog.table(name)).dirty
    }


def clicks_of(stage: Stage, name: str, user: str = "a") -> dict[float, tuple[int, str]]:
    """Seconds from START to the window's start -> (clicks, who wrote the row)."""
    rows = stage.rows(name).where(F.col("user") == user).collect()
    return {
        (r.window.start.astimezone(UTC) - START).total_seconds(): (r.clicks, r[ORIGIN])
        for r in rows
    }


@pytest.fixture(scope="module")
def late(spark, tmp_path_factory) -> Stage:
    """Three hours; then, three hours late, rows of the first; and rows late for a minute of the open hour."""
    stage = Stage(spark, tmp_path_factory.mktemp("updates"), HERE)
    stage.feed("clicks", [at(n) for n in (1, 8, 61, 70, 3595, 3604)])
    stage.feed("clicks", [at(n, "b") for n in (0, 7000)])
    stage.advance("clicks", at(12_000))
    stage.run(*TABLES)
    stage.feed("clicks", [at(16), at(65, value=5), at(3590), at(11_000), at(12_001)])
    stage.advance("clicks", at(12_100))
    stage.run(*TABLES)
    return stage


def test_what_waits_for_an_update_is_pending_and_the_rest_is_compared(late):
    assert dirty(late, "minutes") == {"00": True, "01": True, "02": True, "03": False}, (
        "from the first to the last missed"
    )
    assert verdict(late, "minutes") == "PENDING"
    assert verdict(late, "valid_clicks") == "PENDING"


def test_schedule_and_command_see_what_waits(late):
    schedule = schedules.merge_late_rows(late.session.settings, late.session.catalog)

    def asked():
        return schedule.evaluate_tick(
            dg.build_schedule_context(scheduled_execution_time=datetime.now(UTC))
        )

    (request,) = asked().run_requests
    assert set(request.tags["tables"].split(", ")) == {
        "minutes",
        "sessions",
        "sliding_sums",
        "valid_clicks",
    }
    shown = [json.loads(line) for line in command(late, "--dry-run", "--json").stdout.splitlines()]
    assert {"table": "minutes", "partition": "2026-01-01-03", "closed": False} in [
        {k: r[k] for k in ("table", "partition", "closed")} for r in shown
    ]
    refused = command(late, "clicks")
    assert (
        refused.exit_code == 2
        and "table=clicks, late='side_output': late rows are not merged into this table"
        in refused.stderr
    )


def command(stage: Stage, *arguments: str):
    environment = {
        "LAKEHOUSE_ROOT": str(stage.session.settings.root),
        "LAKEHOUSE_TABLES": "test_updates",
    }
    return CliRunner().invoke(commands.app, ["update", *arguments], env=environment)


def test_an_update_rewrites_the_windows_touched_only_in_one_commit_a_partition(late):
    before = delta_writer.version(late.session.path(late.session.catalog.table("minutes")))
    [commit] = late.update("minutes")
    assert (commit.start, commit.end) == (START, START + timedelta(hours=1))
    assert commit.version == before + 1
    assert commit.written == 4, (
        "the windows of seconds 0 (of two users), 60 and 3540; not those that nothing was late for"
    )
    seen = clicks_of(late, "minutes")
    assert seen[0] == (3, "batch") and seen[60] == (3, "batch") and seen[3540] == (2, "batch")
    assert seen[3600] == (1, "stream"), "another partition"
    assert clicks_of(late, "minutes", "b")[6960] == (1, "stream")
    assert late.update("minutes") == [], "there is nothing left to do"
    assert "no closed partition waited" in command(late, "minutes").stdout


def test_an_open_partition_waits_until_it_closes(late):
    late.update("minutes")
    assert dirty(late, "minutes") == {"03": False}
    assert verdict(late, "minutes") == "PENDING"
    late.advance("clicks", at(14_500))
    late.run("minutes")
    assert [c.start for c in late.update("minutes")] == [START + timedelta(hours=3)]
    assert clicks_of(late, "minutes")[10_980] == (1, "batch")
    assert_stream_equals_batch(late, "minutes")


def test_a_late_row_joins_sessions_of_two_partitions(late):
    late.advance("clicks", at(14_500))
    late.run("sessions")
    late.update("sessions")
    rows = (
        late.rows("sessions").where("user = 'a' AND window.start < '2026-01-01T02:00:00'").collect()
    )
    spans = {
        ((r.window.start.astimezone(UTC) - START).seconds, r.clicks, r[PARTITION][-2:])
        for r in rows
    }
    assert spans == {(1, 3, "00"), (61, 3, "00"), (3590, 3, "01")}, (
        "3590, 3595 and 3604 are one session now"
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_rows_of_a_row_table_are_put_in_and_what_reads_it_follows(late):
    late.advance("clicks", at(14_500))
    late.run("valid_clicks", "hourly")
    assert verdict(late, "hourly") == "EQUAL", "its input does not show them either yet"
    late.update("valid_clicks")
    assert late.rows("valid_clicks").where("value = 5").head()[ORIGIN] == "batch"
    assert_stream_equals_batch(late, "valid_clicks")
    assert verdict(late, "hourly") == "PENDING"
    late.run("hourly")  # to the stream, rewritten rows are not there
    assert late.update("hourly")
    certificate = assert_stream_equals_batch(late, "hourly")
    assert certificate.rows_by_batch_runs


@pytest.mark.slow
@pytest.mark.parallel
def test_a_session_that_goes_on_waits_and_is_rewritten_with_all_partitions_it_spans(
    spark, tmp_path
):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("clicks", [at(n) for n in (3_570, *range(3_590, 7_200, 9))])
    stage.advance("clicks", at(7_200, "b"))
    # joins the row before it, whose session has ended, to those after it
    stage.feed("clicks", [at(3_580)])
    stage.feed("clicks", [at(n) for n in range(7_197, 11_000, 9)])
    stage.run("sessions")
    assert dirty(stage, "sessions") == {"00": True} and stage.update("sessions") == [], (
        "the session has not ended"
    )
    stage.advance("clicks", at(15_000, "b"))
    stage.run("sessions")
    assert verdict(stage, "sessions") == "PENDING"
    [commit] = stage.update("sessions")
    assert (commit.start, commit.end) == (START, START + timedelta(hours=4))
    rows = stage.rows("sessions").where("user = 'a'").collect()
    assert [
        ((r.window.start.astimezone(UTC) - START).seconds, r[PARTITION][-2:]) for r in rows
    ] == [(3_570, "03")]
    assert_stream_equals_batch(stage, "sessions")


@pytest.mark.slow
@pytest.mark.parallel
def test_the_policy_is_switched_with_the_checkpoint_kept(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    updated = stage.session
    tables = updated.catalog.tables | {
        "minutes": replace(updated.catalog.table("minutes"), late="side_output")
    }
    stage.session = replace(updated, catalog=replace(updated.catalog, tables=tables))
    stage.feed("clicks", [at(1)])
    stage.advance("clicks", at(4_000))
    stage.feed("clicks", [at(2)])
    stage.run("minutes")
    assert stage.update("minutes") == [] and clicks_of(stage, "minutes") == {0: (1, "stream")}
    assert_stream_equals_batch(stage, "minutes")
    stage.session = updated
    assert verdict(stage, "minutes") == "PENDING"
    stage.advance("clicks", at(8_000))
    stage.run("minutes")
    assert len(stage.update("minutes")) == 1
    assert clicks_of(stage, "minutes")[0] == (2, "batch"), (
        "what was late under the other policy is merged, too"
    )
    assert_stream_equals_batch(stage, "minutes")
    batches = [
        c.batch
        for c in stage.session.commit_log(stage.session.catalog.table("minutes")).by_stream()
    ]
    assert batches == sorted(batches, reverse=True) and len(set(batches)) == len(batches), (
        "the same checkpoint went on"
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_the_job_of_dagster_rewrites_all_that_waits(late):
    late.advance("clicks", at(14_500))
    late.run("sliding_sums", "sessions")
    run = definitions.build(late.session.settings).resolve_job_def("update").execute_in_process()
    told = {
        (e.asset_key.to_user_string(), e.partition)
        for e in run.asset_materializations_for_node("update_tables")
    }
    assert {("sliding_sums", "2026-01-01-00"), ("sliding_sums", "2026-01-01-03")} <= told
    for name in ("sliding_sums", "sessions"):
        certificate = assert_stream_equals_batch(late, name)
        assert certificate.rows_by_batch_runs, "what was late is in it"
