"""Count windows: every n rows of a key in event-time order, whatever the order they came in."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import count, ingest_table, kafka, window_table
from lakehouse.declare.columns import ORIGIN
from lakehouse.errors import DeclarationError
from lakehouse.testing import Stage, assert_stream_equals_batch

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

click_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@window_table(layer="gold", window=count(3), keys=["user"])
def threes(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(
        F.sum("value").alias("value"), F.count("*").alias("clicks")
    )


@window_table(layer="gold", window=count(3), keys=["user"], late="update")
def updated_threes(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(
        F.sum("value").alias("value"), F.count("*").alias("clicks")
    )


@window_table(layer="gold", window=count(4, every=2), keys=["user"])
def last_fours(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(
        F.sum("value").alias("value"), F.count("*").alias("clicks")
    )


def at(seconds: float, user: str, value: int = 0) -> dict:
    return {"user": user, "at": (START + timedelta(seconds=seconds)).isoformat(), "value": value}


def of(stage: Stage, name: str, user: str) -> list[tuple]:
    """(seconds from START to the window's start and end, clicks, value), in order."""
    rows = stage.rows(name).where(F.col("user") == user).collect()
    ends = [[(moment.astimezone(UTC) - START).total_seconds() for moment in r.window] for r in rows]
    return sorted((*end, r.clicks, r.value) for end, r in zip(ends, rows, strict=True))


@pytest.mark.slow
@pytest.mark.parallel
def test_windows_fill_in_the_order_of_event_time_and_recreated_in_each_partition(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("clicks", [at(4, "a", 4), at(1, "a", 1), at(3, "a", 3), at(2, "a", 2)])
    stage.feed(
        "clicks", [at(10, "a", 10), at(0, "b", 1), at(9, "a", 9), at(8, "a", 8), at(30, "z")]
    )
    stage.run("threes", files_per_batch=1, abort_at="rows")
    # the watermark is 25: the first is late
    stage.feed("clicks", [at(12, "a", 100), at(40, "a", 40)])
    stage.feed("clicks", [at(3_601, "a", 7), at(3_600, "a", 6), at(3_599, "a", 5)])
    for seconds in (7_300, 14_600):
        stage.advance("clicks", at(seconds, "last"))
    stage.run("threes", "updated_threes")
    microsecond = 0.000001
    first = [(1, 3 + microsecond, 3, 6), (4, 9 + microsecond, 3, 21)]
    after = [(3_600, 7_200, 2, 13)]
    # a partition's last window ends with it, full or not
    assert of(stage, "threes", "a") == [*first, (10, 3_599 + microsecond, 3, 55), *after]
    assert of(stage, "threes", "b") == [(0, 3_600, 1, 1)]
    assert_stream_equals_batch(stage, "threes")
    live = stage.session.commit_log(stage.session.catalog.table("threes")).by_stream()
    assert sum(c.late for c in live) == 1

    assert [c.start for c in stage.update("updated_threes")] == [START]
    assert of(stage, "updated_threes", "a") == [
        *first,
        (10, 40 + microsecond, 3, 150),
        (3_599, 3_600, 1, 5),
        *after,
    ]
    assert {r[ORIGIN] for r in stage.rows("updated_threes").where("user = 'a'").collect()} == {
        "batch",
        "stream",
    }
    assert_stream_equals_batch(stage, "updated_threes")


@pytest.mark.slow
@pytest.mark.parallel
def test_windows_slide_over_rows_and_those_of_one_instant_stay_apart(spark, tmp_path):
    stage, microsecond = Stage(spark, tmp_path, HERE), 0.000001
    stage.feed("clicks", [at(n, "a", n) for n in (3, 1, 2, 5, 4)])
    stage.feed("clicks", [at(10, "b", n) for n in range(1, 8)])
    stage.run("threes", "last_fours", files_per_batch=1)
    stage.feed("clicks", [at(10 - microsecond, "c", 1), *(at(10, "c", n) for n in range(2, 10))])
    stage.feed("clicks", [at(9, "a", 9), at(8, "a", 8)])  # the watermark is 5
    for seconds in (7_300, 14_600):
        stage.advance("clicks", at(seconds, "last"))
    stage.run("threes", "last_fours")
    # a window each two rows, of the last four; the last one is cut short by the end of the partition
    assert of(stage, "last_fours", "a") == [
        (1, 2 + microsecond, 2, 3),
        (1, 4 + microsecond, 4, 10),
        (3, 8 + microsecond, 4, 20),
        (5, 3_600, 3, 22),
    ]
    same = 10 + microsecond
    threes = of(stage, "threes", "b")
    assert [(clicks, value) for *_, clicks, value in threes] == [(3, 6), (3, 15), (1, 7)]
    assert [(start, end) for start, end, *_ in threes] == [
        (10 - microsecond, same),
        (10, same),
        (10, 3_600),
    ]
    assert [(round(start, 6), value) for start, *_, value in of(stage, "threes", "c")] == [
        (10 - 3 * microsecond, 6),
        (10 - microsecond, 15),
        (10, 24),
    ]
    assert sorted(r.value for r in stage.rows("last_fours").where("user = 'b'").collect()) == [
        3, 10, 18, 18,
    ]  # fmt: skip
    for name in ("threes", "last_fours"):
        assert_stream_equals_batch(stage, name)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((0,), "count rows=0: at least 1"),
        ((3, 0), "count rows=3, every=0: from 1 to 3"),
        ((3, 4), "count rows=3, every=4: from 1 to 3"),
    ],
)
def test_what_cannot_be_counted_is_refused(given, why):
    with pytest.raises(DeclarationError, match=why):
        count(*given)
