"""Early results: what open windows hold so far, in a table of its own."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, session, tumbling, window_table
from lakehouse.cli import query
from lakehouse.stream.engines import early_results
from lakehouse.testing import Stage
from streaming_jobs.previews import Previews

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

click_topic = kafka("clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@window_table(layer="gold", window=tumbling("1 minute"), keys=["user"], early_results="1 second")
def minutes(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=session("10 seconds"), keys=["user"], early_results="1 second")
def sessions(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


def at(seconds: float) -> dict:
    return {"user": "a", "at": (START + timedelta(seconds=seconds)).isoformat()}


def seen(stage: Stage, name: str, side: str = "") -> dict[float, int]:
    """Seconds from START to the window's start -> clicks."""
    rows = stage.rows(name, side).collect()
    return {(r.window.start.astimezone(UTC) - START).total_seconds(): r.clicks for r in rows}


@pytest.mark.slow
@pytest.mark.parallel
def test_open_windows_are_shown_as_they_grow_and_no_more_once_they_are_final(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    previews = [
        early_results.start(stage.session, stage.session.catalog.table(name))
        for name in ("minutes", "sessions")
    ]

    def fed(*rows: dict) -> None:
        stage.feed("clicks", rows)
        for preview in previews:
            preview.processAllAvailable()

    try:
        fed(at(1), at(2), at(61))
        assert seen(stage, "minutes", "early") == {0: 2, 60: 1} and seen(stage, "minutes") == {}
        assert seen(stage, "sessions", "early") == {1: 2, 61: 1}
        fed(at(3), at(130))
        assert seen(stage, "minutes", "early") == {0: 3, 60: 1, 120: 1}
        # the watermark is 125: the second is late, as it will be for the stream
        fed(at(131), at(4))
        stage.run("minutes", "sessions")
        assert seen(stage, "minutes") == {0: 3, 60: 1}
        fed(at(132))
    finally:
        for preview in previews:
            preview.stop()
    assert seen(stage, "minutes", "early") == {120: 3}, "the others are final"
    assert seen(stage, "sessions", "early") == {130: 3}
    stage.advance("clicks", at(190))
    stage.run("minutes")
    early_results.settle(stage.session, stage.session.catalog.table("minutes"))
    assert seen(stage, "minutes", "early") == {180: 2}, "as the job leaves it when it has drained"
    answer = query.run(stage.session, "SELECT clicks, _origin FROM minutes__early")
    assert answer.rows == [(2, "early")]


def test_early_results_that_fail_are_told_of_and_the_job_goes_on(spark, tmp_path):
    def refused(batch: DataFrame, number: int) -> None:
        raise OSError("no space left on device")

    failing = spark.readStream.format("rate").load().writeStream.foreachBatch(refused)
    preview = failing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException):
        preview.awaitTermination()
    errors: list[str] = []
    stage = Stage(spark, tmp_path / "root", HERE)
    previews = Previews(stage.session, [stage.session.catalog.table("minutes")], errors.append)
    previews.queries["minutes"] = preview
    previews.check()
    previews.check()
    assert previews.queries == {}
    (error,) = errors
    assert error == (
        "table=minutes__early: early results stand still until the job is started again; OSError: no space left on device"
    )
