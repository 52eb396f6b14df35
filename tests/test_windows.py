"""Windows of every kind: what they hold, and that live and bounded runs agree on it."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from test_equivalence import FEW, MANY, START, Event, assert_counts_add_up, play, stories

from lakehouse import bounded
from lakehouse.errors import DeclarationError
from lakehouse.event_time import Range
from lakehouse.table import kafka, session, sliding, sql_table, table, tumbling
from lakehouse.testing import Stage, assert_live_equals_bounded

HERE = sys.modules[__name__]

click_topic = kafka("clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT")


@table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@table(layer="gold", window=sliding("20 seconds", "5 seconds"), keys=["user"])
def sliding_sums(clicks: DataFrame) -> DataFrame:
    return clicks.where("value > -50").groupBy("window", "user").agg(F.sum("value").alias("value"))


@table(layer="gold", window=session("10 seconds"), keys=["user"])
def user_sessions(clicks: DataFrame) -> DataFrame:
    seen = clicks.where("value > -50")
    return seen.groupBy("window", "user").agg(F.count("*").alias("clicks"), F.sum("value").alias("value"))


@table(layer="gold", window=tumbling("1 minute", offset="15 seconds"), keys=["user"])
def shifted(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@table(layer="gold", window=tumbling("1 day", zone="Europe/Berlin"), keys=["user"], grain="day")
def local_days(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


sessions_in_sql = sql_table(
    "sessions_in_sql",
    "SELECT window, user, count(*) AS clicks, sum(value) AS value FROM {clicks} WHERE value > -50 GROUP BY window, user",
    layer="gold",
    window=session("10 seconds"),
    keys=["user"],
)

WINDOWED = ["sliding_sums", "user_sessions", "shifted"]


def click(event: Event) -> dict:
    at = (START + timedelta(seconds=event.at)).isoformat()
    return {"user": f"user-{event.key}", "at": at, "value": event.value}


def at(seconds: float, user: int = 1) -> dict:
    return click(Event(seconds, user, 0, 1))


def held(stage: Stage, name: str) -> list[tuple]:
    """(seconds from START to the window's start and end, clicks) of user-1, in order."""
    rows = stage.rows(name).where("user = 'user-1'").collect()
    ends = [[(moment.astimezone(UTC) - START).total_seconds() for moment in r.window] for r in rows]
    return sorted((*end, r["clicks"]) for end, r in zip(ends, rows, strict=True))


def check(stage_of, story) -> None:
    stage = stage_of(HERE)
    play(stage, story, "clicks", WINDOWED, click)
    for name in WINDOWED:
        certificate = bounded.reconcile(stage.lake, stage.lake.catalog.table(name))
        assert certificate.verdict == "EQUAL", certificate.examples
    assert certificate.rows_bounded, "every click is in a minute"
    assert_counts_add_up(stage, "shifted")


@given(story=stories())
@FEW
def test_windows_live_equal_bounded(stage_of, story):
    check(stage_of, story)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@given(story=stories())
@MANY
def test_windows_live_equal_bounded_in_many_stories(stage_of, story):
    check(stage_of, story)


def test_sessions_join_what_is_at_most_the_gap_apart_and_sql_says_the_same(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("clicks", [at(0), at(9), at(4)])
    stage.feed("clicks", [at(19), at(30), at(41), at(41, user=2)])  # 19 is a gap after 9, 30 more than that after 19
    stage.advance("clicks", at(4000, user=3))
    stage.run("user_sessions", "sessions_in_sql")
    assert held(stage, "user_sessions") == [(0, 29, 4), (30, 40, 1), (41, 51, 1)]
    assert held(stage, "sessions_in_sql") == held(stage, "user_sessions")
    for name in ("user_sessions", "sessions_in_sql"):
        assert_live_equals_bounded(stage, name)


def test_a_session_longer_than_any_context_is_whole_in_a_bounded_run(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    day = [at(9.5 * n) for n in range(3 * 3600 * 2 // 19)]  # three hours without a gap
    stage.feed("clicks", day)
    stage.feed("clicks", [at(10_900)])
    stage.advance("clicks", at(20_000, user=3))
    stage.run("user_sessions")
    whole = held(stage, "user_sessions")
    assert [n for *_, n in whole] == [len(day), 1]
    last_hour = Range(START + timedelta(hours=2), START + timedelta(hours=4))
    certificate = assert_live_equals_bounded(stage, "user_sessions", last_hour)
    assert certificate.rows_bounded == 2
    stage.backfill("user_sessions", last_hour)
    assert held(stage, "user_sessions") == whole


def test_a_session_that_goes_on_at_the_very_end_of_a_range_is_not_in_it(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("clicks", [at(100), at(3590), at(3600)])
    stage.advance("clicks", at(9000, user=3))
    stage.run("user_sessions")
    stage.backfill("user_sessions", Range(START, START + timedelta(hours=1)))
    assert held(stage, "user_sessions") == [(100, 110, 1), (3590, 3610, 2)]


def test_a_sliding_window_across_the_edge_of_a_range_is_whole_in_a_bounded_run(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("clicks", [at(3590), at(3599), at(3601), at(3610)])
    stage.advance("clicks", at(9000, user=3))
    stage.run("sliding_sums")
    stage.backfill("sliding_sums", Range(START + timedelta(hours=1), START + timedelta(hours=2)))
    sums = {(r.window.start.astimezone(UTC) - START).total_seconds(): r.value for r in stage.rows("sliding_sums").collect()
            if r.user == "user-1"}  # fmt: skip
    assert sums == {3575: 1, 3580: 2, 3585: 3, 3590: 3, 3595: 3, 3600: 2, 3605: 1, 3610: 1}
    assert_live_equals_bounded(stage, "sliding_sums")


def test_days_of_a_zone_have_23_and_25_hours_when_its_clocks_change(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    for year_day in ("2026-03-28T23:00", "2026-10-24T22:00"):  # midnight in Berlin before each change
        midnight = datetime.fromisoformat(year_day).replace(tzinfo=UTC)
        moments = [midnight + timedelta(hours=n, minutes=1) for n in range(26)]
        stage.feed("clicks", [{"user": "user-1", "at": m.isoformat(), "value": 1} for m in moments])
    stage.advance("clicks", {"user": "user-3", "at": "2026-10-28T00:00:00Z", "value": 1})
    stage.run("local_days")
    hours = F.expr("timestampdiff(HOUR, window.start, window.end)")
    days = stage.rows("local_days").where("clicks > 5").select(hours, "clicks").collect()
    assert {tuple(day) for day in days} == {(23, 23), (25, 25)}
    assert_live_equals_bounded(stage, "local_days")


def test_windows_with_an_offset_begin_at_it_and_end_before_the_next(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("clicks", [at(14.999), at(15), at(74.999), at(75)])
    stage.advance("clicks", at(4000, user=3))
    stage.run("shifted")
    assert held(stage, "shifted") == [(-45, 15, 1), (15, 75, 2), (75, 135, 1)]
    assert_live_equals_bounded(stage, "shifted")


def test_a_row_late_for_its_session_is_out_of_it_in_both_runs(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("clicks", [at(0), at(100)])
    stage.feed("clicks", [at(2), at(96)])  # the watermark is 95
    stage.advance("clicks", at(4000, user=3))
    stage.run("user_sessions")
    assert held(stage, "user_sessions") == [(0, 10, 1), (96, 110, 2)]
    assert_live_equals_bounded(stage, "user_sessions")
    late = bounded.late_rows(stage.lake, stage.lake.catalog.table("user_sessions")).collect()
    assert [r["at"].astimezone(UTC) for r in late] == [START + timedelta(seconds=2)]


def test_a_filter_after_sessions_is_refused(spark, tmp_path):
    from types import ModuleType

    @table(layer="gold", window=session("10 seconds"), keys=["user"])
    def busy(clicks):
        return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks")).where("clicks > 2")

    busy.transformation.__module__ = "more"
    more = ModuleType("more")
    more.busy = busy
    with pytest.raises(DeclarationError, match="filters after it has aggregated"):
        Stage(spark, tmp_path, HERE, more)


@pytest.mark.parametrize(
    "declare, words",
    [
        (lambda: tumbling("0 seconds"), "longer than nothing"),
        (lambda: tumbling("1 hour", zone="Europe/Berlin"), "only days differ between zones"),
        (lambda: tumbling("1 day", zone="Europe/Berln"), "an IANA name"),
        (lambda: tumbling("1 minute", offset="2 minutes"), "lies below 0:01:00"),
        (lambda: sliding("5 minutes", "2 minutes"), "the slide divides the size"),
        (lambda: session("-1 seconds"), "a duration is a number"),
        (lambda: sql_table("t", "SELECT 1", layer="gold"), "names no input"),
        (lambda: sql_table("t", "SELECT {} FROM {x}", layer="gold"), "inputs are names in braces"),
        (lambda: sql_table("t", "SELECT } FROM {x}", layer="gold"), "write a brace"),
        (lambda: sql_table("t__late", "SELECT * FROM {x}", layer="gold"), "'__' marks side tables"),
    ],
)
def test_a_window_or_query_that_cannot_be_is_refused_with_the_rule(declare, words):
    with pytest.raises(DeclarationError, match=words):
        declare()
