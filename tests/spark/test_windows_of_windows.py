"""A window table is an input like any other: windows of windows, rows of windows, and time that goes on without rows."""

import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    around,
    count,
    duplicates,
    ingest_table,
    kafka,
    row_table,
    session,
    sliding,
    sql,
    tumbling,
    window_table,
)
from lakehouse.batch import batch_state
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

click_topic = kafka("clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@window_table(layer="silver", window=tumbling("10 seconds"), keys=["user"], late="update")
def by_ten_seconds(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=tumbling("1 minute"), keys=["user"])
def by_minute(by_ten_seconds: DataFrame) -> DataFrame:
    return by_ten_seconds.groupBy("window", "user").agg(
        F.sum("clicks").alias("clicks"), F.max("clicks").alias("most")
    )


@window_table(layer="gold", window=tumbling("1 hour"))
def by_hour(by_minute: DataFrame) -> DataFrame:
    return by_minute.groupBy("window").agg(F.sum("clicks").alias("clicks"))


@row_table(layer="silver")
def busy(by_ten_seconds: DataFrame) -> DataFrame:
    """Rows of windows: each keeps its window, and the instant at which it ended."""
    return by_ten_seconds.where("clicks >= 3")


@row_table(layer="silver", context=around(before="20 seconds"))
def again(busy: DataFrame) -> DataFrame:
    before = busy.select(F.col("user").alias("other"), F.col("window_time").alias("then"))
    near = F.expr(
        "other = user AND then < window_time AND then >= window_time - interval 20 seconds"
    )
    return busy.drop("window").join(before, near, "left_semi")


@window_table(layer="gold", window=sliding("1 minute", "30 seconds"))
def times_busy(again: DataFrame) -> DataFrame:
    return again.groupBy("window").agg(F.count("*").alias("times"))


@window_table(layer="gold", window=session("20 seconds"), keys=["user"])
def bursts(by_ten_seconds: DataFrame) -> DataFrame:
    return by_ten_seconds.groupBy("window", "user").agg(F.sum("clicks").alias("clicks"))


in_sql = window_table(layer="gold", window=tumbling("20 minutes"))(
    sql("in_sql", "SELECT window, max(clicks) AS most FROM {by_ten_seconds} GROUP BY window")
)
TABLES = [
    "by_ten_seconds", "by_minute", "by_hour", "busy", "again", "times_busy", "bursts", "in_sql",
]  # fmt: skip


def at(seconds: float, user: str = "ann") -> dict:
    return {"user": user, "at": (START + timedelta(seconds=seconds)).isoformat()}


@pytest.fixture(scope="module")
def empty(spark, tmp_path_factory) -> Stage:
    return Stage(spark, tmp_path_factory.mktemp("windows"), HERE)


@pytest.fixture
def stage(empty, tmp_path) -> Stage:
    return empty.copied(tmp_path)


def fed(stage: Stage, minutes: int = 4) -> None:
    """Ann clicks each 3 seconds, and Bob in some of the ten seconds; each minute is a micro-batch, in disorder."""
    for minute in range(minutes):
        seconds = range(minute * 60, minute * 60 + 60)
        clicked = [at(s) for s in seconds if s % 3 == 0]
        clicked += [at(s, "bob") for s in seconds if s % 20 < 4]
        stage.feed("clicks", sorted(clicked, key=lambda click: (click["at"][-3:], click["user"])))


def sums(stage: Stage, name: str, column: str = "clicks") -> int:
    return stage.rows(name).agg(F.sum(column)).first()[0] or 0


def commits(stage: Stage, name: str) -> list[tuple[int, datetime | None]]:
    lines = stage.session.commit_log(stage.session.catalog.table(name)).by_stream()
    return [(line.batch, line.frontier) for line in lines]


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_windows_of_windows_hold_what_their_inputs_hold(stage):
    fed(stage)
    stage.advance("clicks", at(2 * 3600))
    stage.run(*TABLES)
    for name in TABLES:
        assert_stream_equals_batch(stage, name)
    assert sums(stage, "by_ten_seconds") == sums(stage, "by_minute") == sums(stage, "by_hour")
    assert stage.rows("by_hour").count() == 1
    found = {
        (row.window.start.minute, row.user): (row.clicks, row.most)
        for row in stage.rows("by_minute").collect()
    }
    assert len(found) == 8 and set(found.values()) == {(20, 4), (12, 4)}
    assert stage.rows("bursts").count() == 2
    assert [row.most for row in stage.rows("in_sql").collect()] == [4]
    assert stage.rows("times_busy").count() > 1


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_windows_of_windows_grow_step_by_step_through_crashes(stage):
    for number, point in enumerate(COMMIT_POINTS):
        seconds = range(number * 60, number * 60 + 60)
        clicked = [at(s) for s in seconds if s % 3 == 0]
        clicked += [at(s, "bob") for s in seconds if s % 20 < 4]
        stage.feed("clicks", clicked, abort_at=point)
        stage.run(*TABLES, files_per_batch=1, abort_at=point, by_spark=bool(number % 2))
    stage.advance("clicks", at(2 * 3600))
    stage.run(*TABLES, files_per_batch=1)
    crashed = {name for name, _ in stage.crashes}
    assert {*TABLES, "clicks"} - crashed <= {"by_hour", "in_sql"}, "close once, at the end"
    for name in TABLES:
        assert_stream_equals_batch(stage, name)
    assert sums(stage, "by_ten_seconds") == sums(stage, "by_minute") == 4 * 32


def test_a_window_closes_as_time_goes_on_although_no_row_of_its_own_comes(stage):
    stage.feed("clicks", [at(1), at(2), at(3)])
    stage.run("by_ten_seconds", "busy", "by_minute")
    assert stage.rows("by_minute").count() == 0
    # nobody is busy any more: `busy` gets no row, and knows how far it is
    stage.advance("clicks", at(95))
    stage.run("by_ten_seconds", "busy", "by_minute", "again", "times_busy")
    assert stage.rows("by_ten_seconds").count() == 1
    assert [row.clicks for row in stage.rows("by_minute").collect()] == [3]
    for name in ("by_ten_seconds", "busy", "by_minute"):
        assert stage.frontier(name) == START + timedelta(seconds=90), name
    lines = commits(stage, "busy")
    stage.run("busy", "by_minute")  # and takes no step for nothing
    assert commits(stage, "busy") == lines
    stage.advance("clicks", at(200, "carl"))  # two clicks are not busy
    stage.run("by_ten_seconds", "busy")
    assert stage.rows("busy").count() == 1
    assert stage.frontier("busy") == START + timedelta(seconds=195)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_late_rows_merged_before_a_window_reach_the_windows_behind_it(stage):
    fed(stage, minutes=2)
    stage.advance("clicks", at(3 * 3600))
    stage.run(*TABLES)
    stage.feed("clicks", [at(7), at(8)])
    stage.run(*TABLES)
    assert stage.update("by_ten_seconds")
    catalog = stage.session.catalog
    for name in ("by_minute", "by_hour", "in_sql"):
        waiting = batch_state.read(stage.session, catalog.table(name)).outdated
        hour = Range(START, START + timedelta(hours=1))
        if name != "by_hour":  # its input has not followed yet
            assert waiting == ["2026-01-01-00"], name
        stage.backfill(name, hour)
        assert_stream_equals_batch(stage, name)
    assert sums(stage, "by_hour") == 2 * 32 + 2
    assert max(row.most for row in stage.rows("in_sql").collect()) == 6


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_changed_row_of_a_window_of_windows_is_found_and_repaired(stage):
    fed(stage, minutes=2)
    stage.advance("clicks", at(3 * 3600))
    stage.run("by_ten_seconds", "by_minute")
    path = stage.session.path(stage.session.catalog.table("by_minute"))
    stage.session.spark.sql(f"UPDATE delta.`{path}` SET clicks = 99 WHERE user = 'ann'")
    found = reconciliation.reconcile(stage.session, stage.session.catalog.table("by_minute"))
    assert found.verdict == "DIFFERENT" and "UPDATE" in found.cause
    stage.backfill("by_minute", Range(START, START + timedelta(hours=1)))
    assert_stream_equals_batch(stage, "by_minute")


@pytest.mark.parametrize(
    ("declare", "rule"),
    [
        (window_table(layer="gold", window=count(3)), "order in which rows arrived"),
        (
            row_table(layer="gold", deduplicate=duplicates("user", within="1 minute")),
            "order in which rows arrived",
        ),
    ],
)
def test_what_needs_an_order_of_arrival_is_refused_behind_windows(declare, rule):
    def behind(busy: DataFrame) -> DataFrame:
        return busy

    module = ModuleType("refused")
    behind.__module__ = module.__name__
    module.__dict__.update(
        click_topic=click_topic, clicks=clicks, by_ten_seconds=by_ten_seconds, busy=busy
    )
    module.behind = declare(behind)
    with pytest.raises(DeclarationError, match=rule):
        catalog_of([module])
