"""Ingest tables that read sources of one's own: each record once, whatever the source does meanwhile."""

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from lakehouse import SourceRecord, ingest_table, python_source, tumbling, window_table
from lakehouse.backoff import Backoff
from lakehouse.errors import CommitError, SourceAway, SourceError
from lakehouse.runtime import own_source
from lakehouse.settings import to_environment
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.reading import own, registry, source_input
from lakehouse.stream.reading.registry import check
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from streaming_jobs.command_groups import topic_commands
from streaming_jobs.queries import SupervisedQuery
from support.own_sources import Filled, filled
from support.sensors_job import awaited

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "n BIGINT NOT NULL, at TIMESTAMP NOT NULL, cents DECIMAL(12,2)"


def readings(source: DataFrame) -> DataFrame:
    return source


def per_minute(readings: DataFrame) -> DataFrame:
    return readings.groupBy("window").agg(F.count("*").alias("rows"), F.sum("cents").alias("cents"))


def stage_of(spark, root, source, *, derived: bool = False, **settings) -> Stage:
    module = ModuleType(__name__)
    module.source = source
    module.readings = ingest_table(layer="bronze", event_time="at", delay="5 seconds")(readings)
    if derived:
        module.per_minute = window_table(layer="gold", window=tumbling("1 minute"))(per_minute)
    return Stage(spark, root, module, **settings)


def row(n: int, second: float | None = None) -> dict:
    return {"n": n, "at": START + timedelta(seconds=n if second is None else second), "cents": n}


def numbers(stage: Stage) -> list[int]:
    return sorted(each.n for each in stage.rows("readings").select("n").collect())


def quarantined(stage: Stage) -> dict[str, str]:
    """Reason by partition and offset."""
    rows = stage.rows("readings", side="quarantine").select("_arrival", "reason").collect()
    return {f"{each._arrival.partition}/{each._arrival.offset}": each.reason for each in rows}


def once(stage: Stage) -> None:
    for found in check(stage.session, stage.session.catalog.table("readings")):
        assert (found.missing, found.doubled) == (0, 0), found


@pytest.mark.slow
@pytest.mark.parallel
def test_a_stream_that_crashes_at_each_commit_point_has_each_record_once_and_equals_batch(
    spark, tmp_path
):
    source = filled("x", SCHEMA, p0=[], p1=[])
    there = Filled.there["x"]
    stage = stage_of(spark, tmp_path / "root", source, derived=True, max_offsets_per_trigger=9)
    sent, bad = 0, set()
    for number, point in enumerate(COMMIT_POINTS):
        for partition in (0, 1):
            rows: list = [row(sent + i, 60 * number + 9 * i + partition) for i in range(5)]
            if number > 1:  # of a window that has closed
                rows.append(row(sent + 5, 60 * number - 119))
            sent += len(rows)
            bad.add(f"{partition}/{len(there[partition]) + 2}")
            there[partition] += [*rows[:2], "no JSON", None, None, *rows[2:]]
        if number == 3:  # of two steps: the first moves the watermark, the second carries it
            for partition in (0, 1):
                there[partition] += [row(sent + i, 600 + i) for i in range(10)]
                sent += 10
        stage.run("readings", abort_at=point, by_spark=number == 2)
        if number == 1:
            stage.run("per_minute")
    stage.run("per_minute")
    assert numbers(stage) == list(range(sent))
    assert quarantined(stage) == dict.fromkeys(
        bad, "not a JSON object of the declared types: it is not JSON, at character 1 of 7"
    )
    assert set(stage.crashes) == {("readings", point) for point in COMMIT_POINTS}
    assert_stream_equals_batch(stage, "per_minute")
    windows = stage.session.commit_log(stage.session.catalog.table("per_minute")).by_stream()
    assert sum(commit.late for commit in windows) == 4, "late rows came"
    once(stage)
    assert all(reader.closed for reader in Filled.made if reader.name == "x")


def test_a_record_without_a_timestamp_has_that_of_its_step_also_when_the_step_is_finished_later(
    spark, tmp_path
):
    ahead = datetime.now(UTC) + timedelta(days=1)
    rows = [
        row(0),
        {"n": 1, "at": ahead},
        SourceRecord({"n": 2, "at": ahead}, timestamp=ahead, offset=2),
    ]
    stage = stage_of(spark, tmp_path / "root", filled("x", SCHEMA, p0=rows))
    stage.run("readings", abort_at="rows")
    assert numbers(stage) == [0, 2]
    assert quarantined(stage) == {
        "0/1": "event time more than 0:05:00 ahead of the record's timestamp"
    }
    stage.feed("readings", [row(3)])
    assert numbers(stage) == [0, 2, 3], "the test kit feeds it without its class"


def test_a_source_that_is_away_is_waited_for_and_one_that_goes_back_is_not(
    spark, tmp_path, monkeypatch
):
    monkeypatch.setattr(own, "_PAUSES", Backoff(0.05, 60))
    monkeypatch.setattr(source_input, "_RECOVERED", 0.0)
    source = filled("x", SCHEMA, p0=[row(0)])
    stage = stage_of(spark, tmp_path / "root", source)
    session, ingest = stage.session, stage.session.catalog.table("readings")
    Filled.away |= {"latest_offset"}
    query = queries.start(session, ingest)
    awaited(lambda: "it raised ConnectionError: no route to x" in query.trouble, "it is said")
    Filled.away.clear()
    awaited(lambda: numbers(stage) == [0] and not query.trouble, "it is read once it answers")
    Filled.away |= {"read"}
    Filled.there["x"] = {0: [row(0), row(1)], 3: [row(2)]}
    awaited(lambda: "it must answer read and did not" in query.trouble, "it is said")
    Filled.away.clear()
    query.processAllAvailable()
    assert numbers(stage) == [0, 1, 2] and query.isActive, "a partition that is new, too"
    del Filled.there["x"][3]
    with pytest.raises(
        StepFailed, match=r"partition=3, latest_offset=none: it was 1 before"
    ) as failed:
        query.awaitTermination(60)
    assert isinstance(failed.value.__cause__, SourceError)

    Filled.away |= {"read"}
    Filled.there["x"][3] = [row(2), row(3)]
    with pytest.raises(StepFailed) as failed:
        stage.run("readings")
    assert isinstance(failed.value.__cause__, SourceAway), "a run up to the present does not wait"
    with pytest.raises(SourceAway):
        check(session, ingest)
    Filled.away |= {"latest_offset"}
    with pytest.raises(SourceAway):
        registry.unreadable(session, ingest)
    Filled.away.clear()
    stage.run("readings")
    assert numbers(stage) == [0, 1, 2, 3] and registry.unreadable(session, ingest) == []
    once(stage)
    Filled.there["x"][-1] = []
    (refused,) = registry.unreadable(session, ingest)
    assert refused.startswith(
        "table=readings, source=x, latest_offset={0: 2, 3: 2, -1: 0}: it must"
    )


def test_a_call_that_does_not_return_is_said_once_and_shown_until_it_does(
    spark, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(own_source, "ANSWERS", 0.0)
    stage = stage_of(spark, tmp_path / "root", filled("x", SCHEMA, p0=[row(0)]))
    goes_on = threading.Event()
    monkeypatch.setattr(Filled, "hanging", {"read": goes_on})
    query = SupervisedQuery(stage.session, stage.session.catalog.table("readings"))
    query.start()
    try:
        awaited(lambda: "partition=0" in query.observe().trouble, "it is shown")
        status = query.observe()
        assert (
            "source=x, partition=0, range=[0, 1): it must answer read within 0 s, and has not since"
            in status.trouble
        )
        assert status.unanswered_since and status.unanswered_since in status.trouble
        assert capsys.readouterr().err.count("it must answer read within") == 1
        goes_on.set()
        awaited(lambda: numbers(stage) == [0], "it goes on")
        Filled.hanging.clear()
        monkeypatch.setattr(own_source, "ANSWERS", 60.0)
        assert query.observe().unanswered_since is None and not query.observe().trouble
    finally:
        goes_on.set()
        query.stop()


def test_records_that_a_source_has_let_go_of_are_accepted_by_a_command(
    spark, tmp_path, monkeypatch
):
    source = filled("x", SCHEMA, p0=[row(n) for n in range(6)])
    there = Filled.there["x"][0]
    Filled.earliest["x"] = {0: 2}
    stage = stage_of(spark, tmp_path / "root", source)
    stage.run("readings")
    assert numbers(stage) == [2, 3, 4, 5], "it begins with what there is"
    there += [row(n) for n in range(6, 12)]
    Filled.earliest["x"] = {0: 9}
    session = stage.session
    with pytest.raises(
        StepFailed,
        match=r"source=x, partition=0, offset=6: .*, and the source begins with 9; .*accept-gap readings",
    ) as failed:
        stage.run("readings")
    assert isinstance(failed.value.__cause__, CommitError)
    for name, value in to_environment(session.settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("lakehouse.storage.lakehouse.load", lambda settings: session)
    done = CliRunner().invoke(topic_commands.group, ["accept-gap", "readings", "--yes"])
    assert done.exit_code == 0, done
    assert "x, partition 0: offsets 6 to 8 are lost" in done.output
    stage.run("readings")
    assert numbers(stage) == [2, 3, 4, 5, 9, 10, 11]
    once(stage)
    again = CliRunner().invoke(topic_commands.group, ["accept-gap", "readings", "--yes"])
    assert again.exit_code == 2 and "nothing is lost" in again.stderr, again
    new = CliRunner().invoke(topic_commands.group, ["accept-new", "readings", "--yes"])
    assert new.exit_code == 2 and "it reads x, which is no topic" in new.stderr, new


def test_a_row_that_appears_late_is_found_by_the_check(spark, tmp_path):
    source = filled("x", SCHEMA, p0=[row(0), None, row(2)])
    stage = stage_of(spark, tmp_path / "root", source)
    stage.run("readings")
    once(stage)
    Filled.there["x"][0][1] = row(1)
    (found,) = check(stage.session, stage.session.catalog.table("readings"))
    assert (found.rows, found.missing, found.doubled, found.examples) == (2, 1, 0, "missing 1")


def test_what_a_class_gives_wrong_ends_the_query_before_anything_is_written(spark, tmp_path):
    source = filled("x", SCHEMA, p0=[row(0), 5])
    stage = stage_of(spark, tmp_path / "root", source)
    with pytest.raises(StepFailed, match=r"offset=1, record=5: a record is text, bytes or a"):
        stage.run("readings")
    assert numbers(stage) == []


def test_lines_of_text_and_of_csv_are_read_as_those_of_a_topic(spark, tmp_path):
    at = START.isoformat()
    Filled.there["csv"] = {0: [f"1,{at},1.25", "none", f"2,{at},"]}
    csv = python_source("csv", Filled, schema=SCHEMA, format="csv", options={"name": "csv"})
    stage = stage_of(spark, tmp_path / "root", csv)
    stage.run("readings")
    assert Counter(numbers(stage)) == Counter([1, 2])
    assert quarantined(stage) == {
        "0/1": "not a line of CSV with the declared columns: it has 1 fields, and 3 are declared"
    }
