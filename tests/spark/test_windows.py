"""Windows of every kind: what they hold, and that live and batch runs agree on it."""

from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import session, sql, window_table
from lakehouse.batch import late_merge
from lakehouse.errors import DeclarationError
from lakehouse.ranges import Range
from lakehouse.storage.log.commits import NOTHING
from lakehouse.testing import Stage, assert_stream_equals_batch
from stories import windows

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float, user: str) -> dict:
    return {"user": user, "at": (START + timedelta(seconds=seconds)).isoformat(), "value": 1}


def held(stage: Stage, name: str, user: str) -> list[tuple]:
    """(seconds from START to the window's start and end, clicks) of a user, in order."""
    rows = stage.rows(name).where(F.col("user") == user).collect()
    ends = [[(moment.astimezone(UTC) - START).total_seconds() for moment in r.window] for r in rows]
    return sorted((*end, r["clicks"]) for end, r in zip(ends, rows, strict=True))


def hours(start: int, end: int) -> Range:
    return Range(START + timedelta(hours=start), START + timedelta(hours=end))


@pytest.fixture(scope="module")
def told(spark, tmp_path_factory) -> Stage:
    """What the tests below tell, each of a user of its own, in one stream of ten hours."""
    stage = Stage(spark, tmp_path_factory.mktemp("windows"), windows)
    stage.feed("clicks", [at(n, "gap") for n in (0, 9, 4)] + [at(n, "late") for n in (0, 100)])
    stage.feed("clicks", [at(2, "late"), at(96, "late")])  # the watermark is 95
    stage.feed("clicks", [at(n, "shifted") for n in (314.999, 315, 374.999, 375)])
    stage.feed("clicks", [at(400 + n, "gap") for n in (0, 19, 9, 30, 41)])
    stage.feed("clicks", [at(9.5 * n, "long") for n in range(48, 1136)] + [at(10_900, "long")])
    # the fourth hour ends at 14,400
    stage.feed("clicks", [at(n, "edge") for n in (14_390, 14_399, 14_401, 14_410)])
    stage.feed("clicks", [at(n, "end") for n in (17_000, 17_990, 18_000)])
    stage.advance("clicks", at(36_000, "last"))
    stage.run("user_sessions", "sessions_in_sql", "sliding_sums", "shifted")
    return stage


@pytest.mark.parametrize("name", ["user_sessions", "sessions_in_sql", "sliding_sums", "shifted"])
def test_stream_equals_batch(told, name):
    assert_stream_equals_batch(told, name)


def test_sessions_join_what_is_at_most_the_gap_apart_and_sql_says_the_same(told):
    # 419 is a gap after 409, 430 more than that after 419
    assert held(told, "user_sessions", "gap") == [
        (0, 19, 3),
        (400, 429, 3),
        (430, 440, 1),
        (441, 451, 1),
    ]
    assert held(told, "sessions_in_sql", "gap") == held(told, "user_sessions", "gap")


def test_a_row_late_for_its_session_is_out_of_it_and_in_the_late_view(told):
    assert held(told, "user_sessions", "late") == [(0, 10, 1), (96, 110, 2)]
    late = late_merge.late_rows(told.session, told.session.catalog.table("user_sessions")).collect()
    assert [(r["user"], r["at"].astimezone(UTC)) for r in late] == [
        ("late", START + timedelta(seconds=2))
    ]


def test_windows_with_an_offset_begin_at_it_and_end_before_the_next(told):
    assert held(told, "shifted", "shifted") == [(255, 315, 1), (315, 375, 2), (375, 435, 1)]


def test_a_session_longer_than_any_context_is_whole_in_a_batch_run(told):
    whole = held(told, "user_sessions", "long")  # three hours without a gap, and one click after
    assert [n for *_, n in whole] == [1136 - 48, 1]
    assert assert_stream_equals_batch(told, "user_sessions", hours(2, 4)).rows_recomputed == 2
    assert told.backfill("user_sessions", hours(2, 4)).version == NOTHING, "it has these rows"
    assert held(told, "user_sessions", "long") == whole


def test_a_session_that_goes_on_at_the_very_end_of_a_range_is_not_in_it(told):
    assert told.backfill("user_sessions", hours(4, 5)).version == NOTHING, "it has these rows"
    assert held(told, "user_sessions", "end") == [(17_000, 17_010, 1), (17_990, 18_010, 2)]


def test_a_sliding_window_across_the_edge_of_a_range_is_whole_in_a_batch_run(told):
    assert told.backfill("sliding_sums", hours(4, 5)).version == NOTHING, "it has these rows"
    rows = told.rows("sliding_sums").where("user = 'edge'").collect()
    sums = {
        (r.window.start.astimezone(UTC) - START).total_seconds() - 14_400: r.value for r in rows
    }
    assert sums == {-25: 1, -20: 2, -15: 3, -10: 3, -5: 3, 0: 2, 5: 1, 10: 1}


def test_days_of_a_zone_have_23_and_25_hours_when_its_clocks_change(spark, tmp_path):
    stage = Stage(spark, tmp_path, windows)
    # midnight in Berlin before each change
    for year_day in (
        "2026-03-28T23:00",
        "2026-10-24T22:00",
    ):
        midnight = datetime.fromisoformat(year_day).replace(tzinfo=UTC)
        moments = [midnight + timedelta(hours=n, minutes=1) for n in range(26)]
        stage.feed("clicks", [{"user": "user-1", "at": m.isoformat(), "value": 1} for m in moments])
    stage.advance("clicks", {"user": "user-3", "at": "2026-10-28T00:00:00Z", "value": 1})
    stage.run("local_days")
    hours = F.expr("timestampdiff(HOUR, window.start, window.end)")
    days = stage.rows("local_days").where("clicks > 5").select(hours, "clicks").collect()
    assert {tuple(day) for day in days} == {(23, 23), (25, 25)}
    assert_stream_equals_batch(stage, "local_days")


def long_sessions(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks")).where("clicks > 2")


LONG_SESSIONS = "SELECT window, user, count(*) AS clicks FROM {clicks} GROUP BY window, user HAVING count(*) > 2"


@pytest.mark.parametrize(
    "function",
    [
        lambda: long_sessions,
        lambda: sql("long_sessions", LONG_SESSIONS),
    ],
    ids=["a function", "a query"],
)
def test_a_filter_after_sessions_is_refused(spark, tmp_path, function):
    declared = window_table(layer="gold", window=session("10 seconds"), keys=["user"])(function())
    declared.transformation.__module__ = "more"
    more = ModuleType("more")
    more.long_sessions = declared
    with pytest.raises(DeclarationError, match="filters after it has aggregated"):
        Stage(spark, tmp_path, windows, more)
