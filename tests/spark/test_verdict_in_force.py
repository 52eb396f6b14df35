"""What a table's verdict is, what of its history is reconciled, and what a delay would have cost: one answer, whoever asks."""

import json
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from lakehouse import ingest_table, kafka, tumbling, window_table
from lakehouse.cli import main
from lakehouse.reconcile import reconciliation
from lakehouse.reconcile.verdicts import Outcomes
from lakehouse.storage.log import reconcile_attempts
from lakehouse.testing import Stage

HERE = sys.modules[__name__]
START = datetime(2015, 6, 1, tzinfo=UTC)  # long before the day from which Dagster offers partitions

click_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"], late="side_output")
def sums(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


def at(minutes: float, user: str = "a", value: int = 1) -> dict:
    return {"user": user, "at": (START + timedelta(minutes=minutes)).isoformat(), "value": value}


@pytest.fixture(scope="module")
def whole(spark, tmp_path_factory) -> Stage:
    """Three closed hours, and a fourth, open."""
    stage = Stage(spark, tmp_path_factory.mktemp("verdicts") / "root", HERE)
    for hour in range(4):
        stage.feed("clicks", [at(60 * hour + minute) for minute in range(0, 60, 7)])
    stage.feed("clicks", [at(30)])  # late
    stage.advance("clicks", at(3 * 60 + 57))
    stage.run("sums")
    return stage


@pytest.fixture
def stage(whole, tmp_path) -> Stage:
    root = shutil.copytree(whole.session.settings.root, tmp_path / "root")
    copy = Stage.__new__(Stage)
    copy.__dict__.update(whole.__dict__)
    copy.session = replace(whole.session, settings=replace(whole.session.settings, root=root))
    return copy


def run(stage: Stage, *arguments: str):
    environment = {"LAKEHOUSE_ROOT": str(stage.session.settings.root), "LAKEHOUSE_TABLES": __name__}
    result = CliRunner().invoke(main.app(), list(arguments), env=environment)
    if result.exception and not isinstance(result.exception, SystemExit | typer.Exit):
        raise result.exception
    return result


def lines(result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def hour(number: int) -> tuple[str, ...]:
    return (
        "--start",
        (START + timedelta(hours=number)).isoformat(),
        "--end",
        (START + timedelta(hours=number + 1)).isoformat(),
    )


def verdict(stage: Stage) -> str | None:
    return next(
        each["verdict"]
        for each in lines(run(stage, "table", "list", "--json"))
        if each["table"] == "sums"
    )


def edit(stage: Stage, hour: int) -> None:
    path = str(stage.session.path(stage.session.catalog.table("sums")))
    DeltaTable(path).delete(f"_partition = '{START + timedelta(hours=hour):%Y-%m-%d-%H}'")


def test_the_gravest_of_the_last_verdicts_of_all_ranges_is_in_force():
    def told(*verdicts: tuple[str, int, int]) -> str | None:
        outcomes = Outcomes()
        for number, (verdict, start, end) in enumerate(verdicts):
            span = (START + timedelta(hours=start), START + timedelta(hours=end))
            outcomes.add(verdict, span, START + timedelta(days=1, seconds=number))
        return outcomes.in_force

    assert told() is None
    assert told(("EQUAL", 0, 1)) == "EQUAL"
    assert told(("DIFFERENT", 0, 1), ("EQUAL", 1, 2)) == "DIFFERENT"
    assert told(("DIFFERENT", 0, 2), ("EQUAL", 0, 1)) == "DIFFERENT", "half of it is"
    assert told(("DIFFERENT", 0, 1), ("EQUAL", 0, 1)) == "EQUAL"
    assert told(("DIFFERENT", 0, 1), ("PENDING", 0, 1)) == "PENDING"
    assert told(("PENDING", 0, 1), ("DIFFERENT", 1, 2), ("EQUAL", 2, 3)) == "DIFFERENT"
    assert told(("EQUAL", 0, 1), ("OPEN", 1, 2)) == "EQUAL", "it says nothing of a range"
    assert told(("OPEN", 1, 2)) == "OPEN"


@pytest.mark.slow
@pytest.mark.parallel
def test_tables_says_different_for_as_long_as_a_range_is(stage):
    assert verdict(stage) is None
    assert run(stage, "reconcile", "run", "sums").exit_code == 0 and verdict(stage) == "EQUAL"
    edit(stage, 1)
    assert run(stage, "reconcile", "run", "sums").exit_code == 1 and verdict(stage) == "DIFFERENT"
    assert run(stage, "reconcile", "run", "sums", *hour(2)).exit_code == 0
    assert verdict(stage) == "DIFFERENT", "another range is EQUAL"
    shown = run(stage, "table", "show", "sums").stdout
    assert "DIFFERENT" in shown and "last certificate" in shown
    assert run(stage, "reconcile", "repair", "sums").exit_code == 0 and verdict(stage) == "EQUAL"


@pytest.mark.slow
@pytest.mark.parallel
def test_the_certificate_tells_of_all_history_and_of_what_dagster_leaves_alone(stage):
    (before,) = lines(run(stage, "reconcile", "status", "sums", "--json"))
    assert (before["partitions"], before["reconciled"], before["oldest_unreconciled"]) == (
        3,
        0,
        "2015-06-01T00:00:00Z",
    ), "its start"
    run(stage, "reconcile", "run", "sums", *hour(0))
    (one,) = lines(run(stage, "reconcile", "status", "sums", "--json"))
    assert (one["partitions"], one["reconciled"], one["oldest_unreconciled"]) == (
        3,
        1,
        "2015-06-01T01:00:00Z",
    )
    run(stage, "reconcile", "run", "sums")
    (found,) = lines(run(stage, "reconcile", "status", "sums", "--json"))
    assert (
        found["partitions"],
        found["reconciled"],
        found["share"],
        found["oldest_unreconciled"],
    ) == (3, 3, 1.0, None)
    assert found["before_since"] == 3
    assert (
        "sums: 3 partitions begin before LAKEHOUSE_SINCE=2026-01-01"
        in run(stage, "reconcile", "status", "sums").stdout
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_a_repair_does_not_say_that_nothing_differs_where_nobody_knows(stage):
    unknown = run(stage, "reconcile", "repair", "sums")
    assert unknown.exit_code == 3 and "no partition is known to differ" not in unknown.stdout
    assert "3 of 3 closed partitions have no verdict yet" in unknown.stderr
    run(stage, "reconcile", "run", "sums", *hour(0))
    some = run(stage, "reconcile", "repair", "sums")
    assert some.exit_code == 0 and "no partition is known to differ" in some.stdout
    assert "2 of 3 closed partitions have no verdict yet" in some.stderr
    run(stage, "reconcile", "run", "sums")
    known = run(stage, "reconcile", "repair", "sums")
    assert known.exit_code == 0 and "no verdict" not in known.stderr

    clicks = DeltaTable(str(stage.session.path(stage.session.catalog.table("clicks"))))
    file = Path(clicks.file_uris()[-1])  # of what has closed
    file.write_bytes(b"torn")  # the next reconciliation crashes
    with pytest.raises(Exception, match=file.name):
        run(stage, "reconcile", "run", "sums")
    crashed = run(stage, "reconcile", "repair", "sums")
    assert crashed.exit_code == 3 and "no partition is known to differ" not in crashed.stdout
    assert "gave no verdict" in crashed.stderr
    with pytest.raises(Exception, match=file.name):
        reconciliation.reconcile_parts(stage.session, stage.session.catalog.table("sums"))
    refused = run(stage, "reconcile", "run", "sums", *hour(90))
    assert "gave no verdict" in reconcile_attempts.failed(
        stage.session.settings, stage.session.catalog.table("sums")
    ), refused.output


def cut(spark, root: Path, batches: int) -> list[dict]:
    """What `lateness` says of the same 240 records, a second apart and some 59 s out of order, read in so many micro-batches."""
    stage, rows = Stage(spark, root, HERE), [at(second / 60) for second in range(240)]
    rows[100], rows[159] = rows[159], rows[100]
    size = len(rows) // batches
    for first in range(0, len(rows), size):
        stage.feed("clicks", rows[first : first + size])
    result = run(stage, "table", "lateness", "sums", "--json")
    assert "at most" in run(stage, "table", "lateness", "sums").stdout
    return lines(result)


@pytest.mark.slow
@pytest.mark.parallel
def test_what_a_delay_costs_does_not_depend_on_how_micro_batches_were_cut(spark, tmp_path):
    once, often = cut(spark, tmp_path / "once", 1), cut(spark, tmp_path / "often", 24)
    assert once == often
    late = {each["behind"]: each["late"] for each in once}
    # the row of 59 s before, and those between, which came after the row of 59 s ahead
    assert (late[0.0], late[1.0], late[30.0], late[60.0]) == (59, 59, 30, 0)


def test_status_and_tables_say_what_their_counts_are_of(tmp_path):
    environment = {"LAKEHOUSE_ROOT": str(tmp_path), "LAKEHOUSE_TABLES": __name__}
    shown = CliRunner().invoke(main.app(), ["stream", "status"], env=environment)
    assert (
        "counts begin when a job starts; `lakehouse table list` counts from the beginning of each table"
        in shown.stdout
    ), shown.output
