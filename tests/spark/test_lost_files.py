"""A data file that is gone: what can be computed again is, and what cannot is named."""

import json
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from batch_jobs import backfill, commands
from lakehouse import (
    expect,
    ingest_table,
    kafka,
    row_table,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.batch import batch_state
from lakehouse.declare.columns import ORIGIN, PARTITION
from lakehouse.errors import CommitError, RangeError
from lakehouse.reconcile import coverage, reconciliation
from lakehouse.storage.delta import delta_writer
from lakehouse.stream.advance import StepFailed
from lakehouse.testing import Stage, assert_stream_equals_batch

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = [f"2026-01-01-0{hour}" for hour in range(4)]

click_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@row_table(
    layer="silver", expectations=[expect.column_values_to_be_between("value", max_value=100)]
)
def valid_clicks(clicks: DataFrame) -> DataFrame:
    return clicks


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"], late="update")
def sums(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


@row_table(layer="gold", late="update")
def large_clicks(valid_clicks: DataFrame) -> DataFrame:
    return valid_clicks.where("value > 0")


@versioned_table(layer="gold", keys=["user"])
def last_clicks(clicks: DataFrame) -> DataFrame:
    return clicks.select("user", "at", "value", "_arrival")


def at(minutes: float, user: str = "a", value: int = 1) -> dict:
    return {"user": user, "at": (START + timedelta(minutes=minutes)).isoformat(), "value": value}


@pytest.fixture(scope="module")
def whole(spark, tmp_path_factory) -> Stage:
    """Four closed hours, and a fifth, open; a row of which is quarantined."""
    stage = Stage(spark, tmp_path_factory.mktemp("lost") / "root", HERE)
    for hour in range(5):
        stage.feed(
            "clicks", [at(60 * hour + minute, user) for minute in range(0, 60, 7) for user in "ab"]
        )
    stage.feed("clicks", [at(4 * 60 + 57, value=1_000)])
    stage.advance("clicks", at(4 * 60 + 58))
    stage.run("sums", "valid_clicks")
    return stage


@pytest.fixture
def stage(whole, tmp_path) -> Stage:
    """A copy, to be damaged."""
    root = shutil.copytree(whole.session.settings.root, tmp_path / "root")
    copy = Stage.__new__(Stage)
    copy.__dict__.update(whole.__dict__)
    copy.session = replace(whole.session, settings=replace(whole.session.settings, root=root))
    return copy


def lose(stage: Stage, name: str, hour: str) -> str:
    """Removes one file of that partition."""
    path = stage.session.path(stage.session.catalog.table(name))
    files = [
        Path(file) for file in DeltaTable(str(path)).file_uris() if f"{PARTITION}={hour}" in file
    ]
    files[0].unlink()
    return files[0].name


def command(stage: Stage, *arguments: str):
    settings = stage.session.settings
    environment = {"LAKEHOUSE_ROOT": str(settings.root), "LAKEHOUSE_TABLES": __name__}
    return CliRunner().invoke(commands.app, list(arguments), env=environment)


def hour(number: int) -> tuple[str, ...]:
    return (
        "--start",
        (START + timedelta(hours=number)).isoformat(),
        "--end",
        (START + timedelta(hours=number + 1)).isoformat(),
    )


def test_a_reconciliation_calls_it_different_and_names_the_file(stage):
    name = lose(stage, "sums", HOURS[1])
    found = command(stage, "reconcile", "run", "sums")
    assert found.exit_code == 1, found.output
    assert (
        "DIFFERENT" in found.stdout
        and f"a data file is missing: {PARTITION}={HOURS[1]}/{name}" in found.stdout
    )
    known = coverage.latest(stage.session.settings, stage.session.catalog.table("sums"))
    assert {key: known[key].verdict for key in HOURS} == dict.fromkeys(HOURS, "EQUAL") | {
        HOURS[1]: "DIFFERENT"
    }
    assert known[HOURS[1]].missing > 0 and not known[HOURS[1]].extra


def test_a_repair_rebuilds_it_though_nothing_was_reconciled(stage):
    before = stage.rows("sums").count()
    name = lose(stage, "sums", HOURS[1])
    shown = command(stage, "reconcile", "status", "sums")
    assert shown.exit_code == 1 and name in shown.stdout and "is missing" in shown.stdout, (
        shown.output
    )
    planned = [
        json.loads(line)
        for line in command(
            stage, "reconcile", "repair", "sums", "--dry-run", "--json"
        ).stdout.splitlines()
    ]
    assert [(each["partition"], name in each["cause"], each["rows"] > 0) for each in planned] == [
        (HOURS[1], True, True)
    ]
    repaired = command(stage, "reconcile", "repair", "sums", "--json")
    assert repaired.exit_code == 0, repaired.output
    assert [json.loads(line)["verdict"] for line in repaired.stdout.splitlines()] == ["EQUAL"]
    rows = stage.rows("sums")
    assert rows.count() == before
    assert {
        r[0] for r in rows.where(f"{ORIGIN} = 'batch'").select(PARTITION).distinct().collect()
    } == {HOURS[1]}
    assert_stream_equals_batch(stage, "sums")
    assert command(stage, "reconcile", "status", "sums").exit_code == 0


@pytest.mark.slow
@pytest.mark.parallel
def test_a_backfill_of_that_hour_rebuilds_it(stage):
    lose(stage, "sums", HOURS[1])
    done = command(stage, "backfill", "sums", *hour(1), "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["outcome"] == "rewritten", done.output
    assert_stream_equals_batch(stage, "sums")


@pytest.mark.slow
@pytest.mark.parallel
def test_where_the_input_is_gone_too_nothing_is_replaced_by_less(stage):
    path = stage.session.path(stage.session.catalog.table("clicks"))
    stage.session.spark.sql(
        f"DELETE FROM delta.`{path}` WHERE at < TIMESTAMP '2026-01-01 03:00:00'"
    )
    name, before = (
        lose(stage, "sums", HOURS[1]),
        delta_writer.version(stage.session.path(stage.session.catalog.table("sums"))),
    )
    found = command(stage, "reconcile", "run", "sums", *hour(1))
    assert found.exit_code == 3 and "UNVERIFIABLE" in found.stdout and name in found.stdout, (
        found.output
    )
    repaired = command(stage, "reconcile", "repair", "sums", *hour(1))
    assert repaired.exit_code == 2 and "the input of their rows is gone" in repaired.stderr, (
        repaired.output
    )
    assert delta_writer.version(stage.session.path(stage.session.catalog.table("sums"))) == before


@pytest.mark.slow
@pytest.mark.parallel
def test_an_input_that_is_erased_after_the_plan_is_noticed(stage):
    clicks_path, sums_path = (
        stage.session.path(stage.session.catalog.table(name)) for name in ("clicks", "sums")
    )
    planned = backfill.plan(
        stage.session, "sums", START + timedelta(hours=1), START + timedelta(hours=2)
    )
    stage.session.spark.sql(
        f"DELETE FROM delta.`{clicks_path}` WHERE at < TIMESTAMP '2026-01-01 03:00:00'"
    )
    before = delta_writer.version(sums_path)
    with pytest.raises(RangeError, match="the input of their rows is gone"):
        next(backfill.run(stage.session, planned))
    assert delta_writer.version(sums_path) == before


@pytest.mark.slow
@pytest.mark.parallel
def test_an_update_of_an_hour_with_a_lost_file_rebuilds_the_whole_hour(stage):
    stage.feed("clicks", [at(61, value=50)])
    stage.advance("clicks", at(4 * 60 + 59))
    stage.run("sums")
    lose(stage, "sums", HOURS[1])
    assert [c.start.hour for c in stage.update("sums")] == [1]
    assert_stream_equals_batch(stage, "sums")


@pytest.mark.slow
@pytest.mark.parallel
def test_a_lost_file_of_the_quarantine_is_written_again(stage):
    path = stage.session.path(stage.session.catalog.table("valid_clicks"), "quarantine")
    (file,) = DeltaTable(str(path)).file_uris()
    stage.advance("clicks", at(5 * 60 + 10))
    stage.run("valid_clicks")
    Path(file).unlink()
    assert command(stage, "backfill", "valid_clicks", *hour(4)).exit_code == 0
    assert stage.rows("valid_clicks", "quarantine").count() == 1
    assert delta_writer.version(path) == 2


@pytest.mark.slow
@pytest.mark.parallel
def test_a_reconciled_hour_whose_file_is_lost_is_due_again(stage):
    table = stage.session.catalog.table("sums")
    reconciliation.reconcile(stage.session, table)
    assert coverage.due(stage.session, table) == []
    name = lose(stage, "sums", HOURS[2])
    (due,) = coverage.due(stage.session, table)
    assert due.partition == HOURS[2] and name in due.why
    reconciliation.reconcile(stage.session, table)
    assert coverage.due(stage.session, table) == [], "it is known to be different"


def test_a_lost_file_of_an_input_is_named_with_what_to_do_and_a_repair_does_not_say_that_all_is_well(
    stage,
):
    name = lose(stage, "clicks", "2030-01-01-00")
    crashed = command(stage, "reconcile", "run", "sums")
    assert (
        crashed.exit_code == 2
        and name in crashed.stderr
        and "restore it from a backup" in crashed.stderr
    ), crashed.stderr
    asked = command(stage, "reconcile", "repair", "sums")
    assert asked.exit_code == 3, asked.output
    assert "no partition is known to differ" not in asked.stdout
    for said in (name, "gave no verdict", "4 of 4 closed partitions have no verdict yet"):
        assert said in asked.stderr


@pytest.mark.slow
@pytest.mark.parallel
def test_a_file_that_was_replaced_before_a_reader_came_to_it_is_passed_over(stage, capsys):
    name = lose(stage, "valid_clicks", HOURS[1])
    with pytest.raises(
        StepFailed, match="`lakehouse reconcile repair valid_clicks` computes its partition again"
    ):
        stage.run("large_clicks")
    assert command(stage, "reconcile", "repair", "valid_clicks").exit_code == 0
    capsys.readouterr()
    stage.run("large_clicks")
    assert (
        f"table=large_clicks, input=valid_clicks: 1 files that it had not read are gone ({name})"
        in capsys.readouterr().err
    )
    table = stage.session.catalog.table("large_clicks")
    assert batch_state.read(stage.session, table).outdated == [HOURS[1]]
    stage.update("large_clicks")
    assert_stream_equals_batch(stage, "large_clicks")
    assert stage.rows("large_clicks").count() == stage.rows("valid_clicks").count()


@pytest.mark.slow
@pytest.mark.parallel
def test_of_a_keyed_table_that_lost_a_file_the_certificate_names_the_remedy(stage):
    stage.run("last_clicks")
    path = stage.session.path(stage.session.catalog.table("last_clicks"))
    Path(DeltaTable(str(path)).file_uris()[0]).unlink()
    with pytest.raises(
        CommitError, match=r"table=last_clicks, file=.*`lakehouse backfill last_clicks` has its job"
    ):
        reconciliation.reconcile(stage.session, stage.session.catalog.table("last_clicks"))
