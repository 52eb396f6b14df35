"""Ranks, distinct counts, aggregates of aggregates: what Spark's streams do not do, live on ranges as they close."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, session, sliding, sql, tumbling, window_table
from lakehouse.errors import DeclarationError
from lakehouse.testing import Stage, assert_stream_equals_batch

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

click_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, page STRING NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["rank"])
def top(clicks: DataFrame) -> DataFrame:
    counted = clicks.groupBy("window", "page").agg(F.count("*").alias("clicks"))
    most = Window.partitionBy("window").orderBy(F.desc("clicks"), "page")
    return counted.withColumn("rank", F.row_number().over(most)).where("rank <= 2")


@window_table(layer="gold", window=sliding("20 seconds", "10 seconds"))
def audiences(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window").agg(F.count_distinct("user").alias("users"))


@window_table(layer="gold", window=sliding("20 seconds", "15 seconds"))
def uneven(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=sliding("1 hour", "40 minutes", offset="-10 minutes"))
def long_and_uneven(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=tumbling("10 seconds"), late="update")
def busiest(clicks: DataFrame) -> DataFrame:
    of_user = clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))
    return of_user.groupBy("window").agg(F.max("clicks").alias("most"))


@window_table(layer="gold", window=session("10 seconds"), keys=["user"])
def pages_of_sessions(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count_distinct("page").alias("pages"))


users_in_sql = window_table(layer="gold", window=tumbling("10 seconds"))(
    sql(
        "users_in_sql", "SELECT window, count(DISTINCT user) AS users FROM {clicks} GROUP BY window"
    )
)
TABLES = [
    "top",
    "audiences",
    "busiest",
    "pages_of_sessions",
    "users_in_sql",
    "uneven",
    "long_and_uneven",
]


def at(seconds: float, user: str, page: str) -> dict:
    return {"user": user, "at": (START + timedelta(seconds=seconds)).isoformat(), "page": page}


def in_windows(seconds: list[int], size: int, slide: int, offset: int = 0) -> list[tuple]:
    """How many rows are in each window that closes within two hours, counted one by one."""
    starts = range(offset - size // slide * slide - slide, 7200, slide)
    counted = [(s, sum(s <= at < s + size for at in seconds)) for s in starts if s + size < 7200]
    return [(start, rows) for start, rows in counted if rows]


def seen(stage: Stage, name: str, *columns: str) -> list[tuple]:
    rows = stage.rows(name).collect()
    return sorted(
        ((r.window.start.astimezone(UTC) - START).total_seconds(), *(r[c] for c in columns))
        for r in rows
    )


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
def test_ranks_distinct_counts_and_aggregates_of_aggregates(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed(
        "clicks",
        [at(1, "a", "x"), at(2, "b", "y"), at(12, "a", "y"), at(3, "a", "y"), at(4, "a", "z")],
    )
    stage.feed("clicks", [at(8, "b", "y"), at(5, "c", "x"), at(11, "a", "z"), at(26, "a", "x")])
    stage.run("top", "pages_of_sessions", files_per_batch=2, abort_at="rows")
    # the watermark is 21: the first is late
    stage.feed("clicks", [at(9, "z", "q"), at(21, "b", "x"), at(22, "b", "q")])
    for hours in (1, 2):
        stage.advance("clicks", at(3600 * hours, "last", "x"))
    stage.run(*TABLES, files_per_batch=2)
    assert seen(stage, "top", "rank", "page", "clicks") == [
        (0, 1, "y", 3), (0, 2, "x", 2), (10, 1, "y", 1), (10, 2, "z", 1), (20, 1, "x", 2), (20, 2, "q", 1), (3600, 1, "x", 2),
    ]  # fmt: skip
    users = [(-10, 3), (0, 3), (10, 2), (20, 2), (3590, 1), (3600, 1)]
    assert seen(stage, "audiences", "users") == users
    assert seen(stage, "users_in_sql", "users") == [(0, 3), (10, 1), (20, 2), (3600, 1)]
    sessions = [(1, "a", 3), (2, "b", 1), (22, "b", 1), (26, "a", 1), (3600, "last", 1)]
    assert seen(stage, "pages_of_sessions", "user", "pages") == sessions, (
        "c at 5 and b at 21 are late for a session"
    )
    assert seen(stage, "busiest", "most") == [(0, 3), (10, 2), (20, 2), (3600, 2)]
    rows = [1, 2, 12, 3, 4, 8, 5, 11, 26, 21, 22, 3600, 3600, 7200, 7200]
    assert seen(stage, "uneven", "clicks") == in_windows(rows, 20, 15)
    assert seen(stage, "long_and_uneven", "clicks") == in_windows([*rows, 9], 3600, 2400, -600)
    stage.update("busiest")
    for name in TABLES:
        assert_stream_equals_batch(stage, name)


@pytest.mark.parametrize(
    "function, told",
    [
        (
            lambda rows: rows.orderBy(F.desc("clicks")).limit(10),
            "operators=GlobalLimit: it is over all windows",
        ),
        (
            lambda rows: rows.withColumn("rank", F.rank().over(Window.orderBy("clicks"))),
            "expression=.*: it is over all windows that are computed at once; add window to its PARTITION BY",
        ),
    ],
    ids=["limit", "rank of all"],
)
def test_what_depends_on_other_windows_is_refused(spark, tmp_path, function, told):
    from types import ModuleType

    module = ModuleType("ranked_module")
    module.click_topic, module.clicks = click_topic, clicks

    def ranked(clicks):
        return function(clicks.groupBy("window", "user").agg(F.count("*").alias("clicks")))

    ranked.__module__ = "ranked_module"
    module.ranked = window_table(layer="gold", window=tumbling("1 minute"))(ranked)
    with pytest.raises(DeclarationError, match=told):
        Stage(spark, tmp_path, module)
