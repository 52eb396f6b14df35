"""Rows quarantined, then put in: by a mended declaration, with the arrival they had, once, and what reads them follows."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from assets import definitions
from assets.metadata import of_partition
from batch_jobs import commands
from lakehouse import expect, ingest_table, kafka, row_table, session, tumbling, window_table
from lakehouse.errors import RangeError
from lakehouse.maintenance import replay_quarantine
from lakehouse.ranges import Range
from lakehouse.reconcile import coverage, reconciliation
from lakehouse.storage.log import table_content
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.testing import Stage

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING = ("valid", "minutes", "sessions")

reading_topic = kafka(
    "readings", schema="sensor STRING NOT NULL, at TIMESTAMP NOT NULL, text STRING"
)


@ingest_table(
    layer="bronze",
    event_time="at",
    delay="5 seconds",
    expectations=[expect.column_values_to_not_be_null("value")],
)
def readings(reading_topic: DataFrame) -> DataFrame:
    return reading_topic.withColumn("value", F.expr("try_cast(text AS DECIMAL(6, 1))"))


def mended(reading_topic: DataFrame) -> DataFrame:
    """Knows a comma, too."""
    return reading_topic.withColumn(
        "value", F.expr("try_cast(replace(text, ',', '.') AS DECIMAL(6, 1))")
    )


@row_table(layer="silver")
def valid(readings: DataFrame) -> DataFrame:
    return readings.where("value < 1000")


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["sensor"])
def minutes(valid: DataFrame) -> DataFrame:
    return valid.groupBy("window", "sensor").agg(
        F.sum("value").alias("value"), F.count(F.lit(1)).alias("n")
    )


@window_table(layer="gold", window=session("15 minutes"), keys=["sensor"])
def sessions(readings: DataFrame) -> DataFrame:
    return readings.groupBy("window", "sensor").agg(F.count(F.lit(1)).alias("n"))


def at(minute: float, text: str, sensor: str = "a") -> dict:
    return {"sensor": sensor, "at": (START + timedelta(minutes=minute)).isoformat(), "text": text}


@pytest.fixture
def stage(spark, tmp_path) -> Stage:
    """Four hours; in the first two a comma now and then, in the last one, too, which is still open."""
    stage = Stage(spark, tmp_path / "root", HERE)
    stage._now = datetime(2026, 1, 2, tzinfo=UTC)
    stage.feed(
        "readings",
        [at(m, "1,5" if m % 3 == 0 else "2.5") for m in range(0, 110, 5)]
        + [at(3, "?"), b"no JSON"],
    )
    stage.advance("readings", at(130, "1.0", "b"))
    stage.feed("readings", [at(20, "7,5"), at(20, "8.5")])  # late, and late they stay
    stage.advance("readings", at(190, "1.0", "b"))
    stage.feed("readings", [at(200, "9,5")])
    stage.run(*RUNNING)
    stage._now += timedelta(hours=3)
    return stage


@pytest.fixture
def again(spark, tmp_path) -> Stage:
    """A topic that was made again after three bad messages, and whose next three have the same offsets."""
    stage = Stage(spark, tmp_path / "root", HERE)
    stage._now = datetime(2026, 1, 2, tzinfo=UTC)
    for sensor in "ab":
        stage.feed("readings", [at(minute, "1,5", sensor) for minute in range(3)])
        stage._offsets.clear()
    stage.advance("readings", at(190, "1.0", "c"))
    stage.run(*RUNNING)
    stage._now += timedelta(hours=3)
    return stage


def declared(stage: Stage) -> None:
    other = replace(stage.session.catalog.table("readings"), transformation=mended)
    tables = {t.name: other if t.name == "readings" else t for t in stage.session.catalog}
    stage.session = replace(stage.session, catalog=replace(stage.session.catalog, tables=tables))


def offsets(stage: Stage, side: str = "") -> list[int]:
    return sorted(r[0] for r in stage.rows("readings", side).select("_arrival.offset").collect())


def verdicts(stage: Stage) -> dict[str, set[str]]:
    whole = Range(START, START + timedelta(hours=3))
    return {
        n: {
            c.verdict
            for c in reconciliation.reconcile_parts(
                stage.session, stage.session.catalog.table(n), whole
            )
        }
        for n in RUNNING
    }


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(300)
def test_messages_of_a_topic_made_again_are_told_from_those_of_the_same_offsets_before(again):
    declared(again)
    assert (
        replay_quarantine.replay(again.session, again.session.catalog.table("readings")).rows == 6
    )
    assert offsets(again, "quarantine") == []
    rows = again.rows("readings").where("sensor <> 'c'").groupBy("sensor").count().collect()
    assert {row["sensor"]: row["count"] for row in rows} == {"a": 3, "b": 3}


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_what_is_good_now_is_put_in_once_and_everything_follows(stage, monkeypatch):
    assert set().union(*verdicts(stage).values()) == {"EQUAL"}
    before, aside = offsets(stage), offsets(stage, "quarantine")
    assert (
        replay_quarantine.planned(stage.session, stage.session.catalog.table("readings")).rows == 0
    ), "nothing was mended yet"
    declared(stage)
    planned = replay_quarantine.planned(stage.session, stage.session.catalog.table("readings"))
    assert {hour.hour: n for hour, n in planned.hours.items()} == {
        0: 5,
        1: 4,
    } and planned.waiting == 1
    assert sorted(planned.bad) == sorted(
        [
            "not a JSON object of the declared types: it is not JSON",
            *[r for r in planned.bad if "value" in r],
        ]
    )
    assert set(planned.follow) == set(RUNNING)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(replay_quarantine.delta_writer, "replace", killed)
        replay_quarantine.replay(stage.session, stage.session.catalog.table("readings"))
    assert len(offsets(stage)) == len(before) + 9 and offsets(stage, "quarantine") == aside, (
        "killed in between"
    )
    done = replay_quarantine.replay(stage.session, stage.session.catalog.table("readings"))
    assert done.rows == 9
    assert sorted(offsets(stage) + offsets(stage, "quarantine")) == sorted(before + aside), (
        "each offset once"
    )
    assert len(offsets(stage, "quarantine")) == len(aside) - 9
    assert set().union(*verdicts(stage).values()) == {"EQUAL"}
    first = stage.rows("minutes").where("window.start = '2026-01-01 00:00:00'").head()
    assert (float(first.value), first.n) == (4.0, 2)
    late = stage.rows("valid").where("value IN (7.5, 8.5)")
    assert late.isEmpty(), "what was late at its arrival is late"

    written = {name: stage.rows(name).count() for name in RUNNING}
    stage.run(*RUNNING)
    assert written == {name: stage.rows(name).count() for name in RUNNING}, (
        "no stream takes them for new"
    )
    assert (
        replay_quarantine.replay(stage.session, stage.session.catalog.table("readings")).rows == 0
    )
    stage.advance("readings", at(310, "1.0", "b"))
    stage.run(*RUNNING)
    assert (
        replay_quarantine.replay(stage.session, stage.session.catalog.table("readings")).rows == 1
    ), "its hour has closed"
    due = {name: coverage.due(stage.session, stage.session.catalog.table(name)) for name in RUNNING}
    assert "2026-01-01-03" in {d.partition for d in due["minutes"]}
    assert {
        c.verdict
        for c in reconciliation.reconcile_parts(
            stage.session, stage.session.catalog.table("minutes")
        )
    } == {"EQUAL"}
    lines = [
        c
        for c in CommitLog(stage.session.settings, stage.session.catalog.table("readings"))
        if c.role == "batch"
    ]
    assert sum(c.written for c in lines) == 9 + 9 + 1, (
        "a line each time, also of the one that was killed"
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_the_command_tells_what_stays_aside_and_a_derived_table_is_refused(stage):
    environment = {"LAKEHOUSE_ROOT": str(stage.session.settings.root), "LAKEHOUSE_TABLES": __name__}
    shown = CliRunner().invoke(
        commands.app, ["table", "replay", "readings", "--dry-run", "--json"], env=environment
    )
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    aside = coverage.reasons(
        stage.session.settings,
        stage.session.catalog.table("readings"),
        ["2026-01-02-00", "2026-01-03-00"],
    )
    assert aside == {"2026-01-02-00": told["bad"], "2026-01-03-00": {}}
    shown = of_partition(table_content.Stored(7), aside["2026-01-02-00"])
    assert shown["rows_quarantined"] == sum(told["bad"].values())
    assert shown["quarantined: not a JSON object of the declared types: it is not JSON"] == 1
    assert (
        told["rows"] == 0
        and told["bad"]["not a JSON object of the declared types: it is not JSON"] == 1
    )
    job = definitions.build(stage.session.settings).resolve_job_def("replay")
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(
            {"ops": {"replay_quarantine": {"config": {"table": "readings"}}}}, instance=instance
        )
    assert done.output_for_node("replay_quarantine") == 0
    (output,) = [e.step_output_data for e in done.all_events if e.is_successful_output]
    assert (
        output.metadata["stay_quarantined"].value == told["bad"]
        and output.metadata["waiting"].value == told["waiting"]
    )
    with pytest.raises(RangeError, match="a backfill judges the quarantined rows"):
        replay_quarantine.planned(stage.session, stage.session.catalog.table("minutes"))
