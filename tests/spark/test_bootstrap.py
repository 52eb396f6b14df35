"""A new table over history: a batch run up to the handover, the stream from exactly there, over every kind of table."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from assets import definitions
from batch_jobs import backfill as job
from batch_jobs import commands
from lakehouse import (
    around,
    ingest_table,
    kafka,
    row_table,
    session,
    sliding,
    tumbling,
    window_table,
)
from lakehouse.errors import JobError
from lakehouse.maintenance import needs, retention
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.position.handovers import handover_of
from lakehouse.stream import handover as handovers
from lakehouse.testing import Stage

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
NEW = ("plain", "sums", "slid", "sessions", "best", "pairs")

visit_topic = kafka(
    "visits", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def seen(visit_topic: DataFrame) -> DataFrame:
    return visit_topic


@row_table(layer="silver")
def plain(seen: DataFrame) -> DataFrame:
    return seen.where("value > 0")


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"], late="update")
def sums(seen: DataFrame) -> DataFrame:
    return seen.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=sliding("30 minutes", "10 minutes"), keys=["user"])
def slid(seen: DataFrame) -> DataFrame:
    return seen.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=session("20 minutes"), keys=["user"])
def sessions(seen: DataFrame) -> DataFrame:
    return seen.groupBy("window", "user").agg(F.count(F.lit(1)).alias("n"))


@row_table(layer="silver", context=around(before="20 minutes", after="10 minutes"))
def pairs(seen: DataFrame) -> DataFrame:
    others = seen.where("user = 'b'").select(
        F.col("at").alias("then"), F.col("value").alias("other")
    )
    near = F.expr("then BETWEEN at - interval 20 minutes AND at + interval 10 minutes")
    return seen.where("user = 'a'").join(others, near, "left")


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"])
def best(plain: DataFrame) -> DataFrame:
    return plain.groupBy("window", "user").agg(F.countDistinct("value").alias("n"))


@window_table(layer="gold", window=sliding("30 minutes", "10 minutes"), keys=["user"])
def wide(plain: DataFrame) -> DataFrame:
    return plain.groupBy("window", "user").agg(F.sum("value").alias("value"))


def at(minutes: float, user: str = "a", value: int = 1) -> dict:
    return {"user": user, "at": (START + timedelta(minutes=minutes)).isoformat(), "value": value}


@pytest.fixture
def stage(stage_of):
    """Three hours of history in the record, some of it late, user `b` without a pause; nothing was computed from it yet."""
    stage = stage_of(HERE)
    for hour in range(3):
        minutes = range(60 * hour, 60 * hour + (40 if hour == 2 else 60), 6)
        stage.feed(
            "seen",
            [at(m, "a", m % 5) for m in minutes if m % 60 < 30]
            + [at(m + 1, "b", m % 7) for m in minutes],
        )
        stage.feed("seen", [at(60 * hour - 90, "late", 3)] if hour > 1 else [])
    return stage


def table_of(stage: Stage, name: str):
    return stage.session.catalog.table(name)


def cut(stage: Stage, name: str) -> None:
    """Leaves of the table's log what its last version is read with."""
    log = stage.session.path(table_of(stage, name)) / "_delta_log"
    DeltaTable(str(log.parent)).create_checkpoint()
    versions = sorted(int(p.stem) for p in log.glob("*.json"))
    for version in versions[:-1]:
        (log / f"{version:020}.json").unlink()


def goes_on(stage: Stage, *tables: str) -> None:
    """Two hours more, some of them late for what lies behind the handover."""
    stage.run(*tables)
    for minute in range(160, 280, 6):
        stage.feed(
            "seen",
            [
                at(minute, "a", minute % 5),
                at(minute + 1, "b", minute % 7),
                at(minute - 120, "late", 9),
            ],
        )
    stage.advance("seen", at(5 * 60 + 1))
    stage.run(*tables)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_history_and_stream_meet_without_a_gap_and_without_a_duplicate(stage):
    for name in NEW:
        planned = job.begin(stage.session, name)
        assert (planned.start, planned.end) == (START, START + timedelta(hours=2)), name
        assert sum(c.written for c in job.run(stage.session, planned)) > 0
        if name == "plain":
            # what is behind a table with a handover begins where that one does, or later
            stage.run(name)
    goes_on(stage, *NEW)
    whole = Range(START, START + timedelta(hours=5))
    for name in NEW:
        found = reconciliation.reconcile_parts(stage.session, table_of(stage, name), whole)
        verdicts = {(c.verdict, c.rows_by_batch_runs > 0) for c in found if c.rows_in_table}
        assert {verdict for verdict, _ in verdicts} == (
            {"EQUAL", "PENDING"} if name == "sums" else {"EQUAL"}
        ), (name, found)
        assert len(verdicts) > 1, f"{name}: some by a batch run, some live"
    stage.update("sums")
    assert {
        c.verdict
        for c in reconciliation.reconcile_parts(stage.session, table_of(stage, "sums"), whole)
    } == {"EQUAL"}
    begun = handover_of(stage.session.settings, table_of(stage, "slid"))
    assert (
        begun.inputs == {"visits": {"0": begun.inputs["visits"]["0"]}}
        and begun.version <= begun.until
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_whose_input_was_cut_begins_at_a_handover_by_itself(stage, capsys):
    stage.run("plain")
    with pytest.raises(JobError, match="has begun without a handover"):
        handovers.begin(stage.session, table_of(stage, "plain"))
    cut(stage, "seen")
    with pytest.raises(JobError, match="its log does not keep those before it"):
        handovers.begin(stage.session, table_of(stage, "slid"))
    stage.feed("seen", [at(4 * 60)])  # the very instant of the handover that is tried next
    cut(stage, "seen")
    stage.advance("seen", at(4 * 60 + 5.5))
    with pytest.raises(JobError, match="rows from 2026-01-01T04:00:00Z on are in versions up to"):
        handovers.begin(stage.session, table_of(stage, "sums"))
    stage.advance("seen", at(5 * 60 + 5))
    stage.run("slid")
    begun = handover_of(stage.session.settings, table_of(stage, "slid"))
    assert begun.frontier == START + timedelta(hours=5)
    assert "begins at its handover 2026-01-01T05:00:00Z" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parallel
def test_of_a_log_cut_to_its_last_version_stays_what_a_new_table_begins_with(stage):
    settings, path = (
        replace(stage.session.settings, versions=1),
        stage.session.path(table_of(stage, "seen")),
    )
    last = DeltaTable(str(path)).version()
    for version in range(last + 1):
        DeltaTable(str(path), version=version).create_checkpoint()
    done = retention.maintain(
        settings,
        retention.places(replace(stage.session, settings=settings), table_of(stage, "seen"))[0],
    )
    assert done.held_by == "a table yet to be declared" and 0 < done.oldest < last
    assert min(int(p.stem) for p in (path / "_delta_log").glob("*.json")) == done.oldest
    assert all(job.run(stage.session, job.begin(stage.session, "sums")))
    assert handover_of(settings, table_of(stage, "sums")).frontier == START + timedelta(hours=2)
    goes_on(stage, "sums")
    stage.update("sums")
    found = reconciliation.reconcile_parts(
        stage.session, table_of(stage, "sums"), Range(START, START + timedelta(hours=5))
    )
    assert {c.verdict for c in found} == {"EQUAL"} and sum(c.rows_in_table for c in found) > 50


@pytest.mark.slow
@pytest.mark.parallel
def test_behind_a_table_with_a_handover_a_window_does_not_reach_across_it(stage):
    planned = job.begin(stage.session, "plain")
    assert planned and all(job.run(stage.session, planned))
    stage.run("plain")
    with pytest.raises(
        JobError,
        match=r"windows ahead of 2026-01-01T02:00:00Z read plain from 2026-01-01T01:40:00Z on",
    ):
        handovers.begin(stage.session, table_of(stage, "wide"))


@pytest.mark.slow
@pytest.mark.parallel
def test_without_history_behind_it_there_is_nothing_to_compute(stage_of):
    stage = stage_of(HERE)
    with pytest.raises(JobError, match="has no frontier yet"):
        job.begin(stage.session, "sums")
    stage.feed("seen", [at(1)])
    stage.advance("seen", at(30))
    assert job.begin(stage.session, "sums") is None
    stage.run("sums")
    assert [r.value for r in stage.rows("sums").collect()] == [1]


@pytest.mark.slow
@pytest.mark.parallel
def test_the_command_tells_the_handover_and_maintenance_keeps_what_it_needs(stage):
    settings, averages = stage.session.settings, table_of(stage, "slid")
    environment = {"LAKEHOUSE_ROOT": str(settings.root), "LAKEHOUSE_TABLES": __name__}
    done = CliRunner().invoke(commands.app, ["bootstrap", "slid", "--json"], env=environment)
    assert done.exit_code == 0, done.output
    first, *commits = map(json.loads, done.stdout.splitlines())
    assert (
        first["frontier"].startswith("2026-01-01T02:00")
        and first["input"] == "seen"
        and len(commits) == 2
    )
    assert frontier(settings, averages) == START + timedelta(hours=2)
    assert needs.needed(stage.session, table_of(stage, "seen"))["slid"] == first["version"]
    stage.run("slid")
    assert needs.needed(stage.session, table_of(stage, "seen"))["slid"] > first["version"]
    again = definitions.build(settings).resolve_job_def("bootstrap")
    with dg.DagsterInstance.ephemeral() as instance:
        told = again.execute_in_process(
            {"ops": {"fill_history": {"config": {"table": "slid"}}}}, instance=instance
        )
    hours = ["2026-01-01-00", "2026-01-01-01"]
    assert [e.partition for e in told.asset_materializations_for_node("fill_history")] == hours
    refused = CliRunner().invoke(commands.app, ["bootstrap", "seen"], env=environment)
    assert refused.exit_code == 2 and "only the stream writes an ingest table" in " ".join(
        refused.output.split()
    )
