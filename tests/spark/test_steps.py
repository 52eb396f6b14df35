"""Tables that are filled by steps: they follow their input, are cut off and go on, and two of them never write one table."""

import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from lakehouse import (
    around,
    count,
    ingest_table,
    kafka,
    keyed_table,
    row_table,
    session,
    sliding,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.errors import RangeError
from lakehouse.stream import advance, queries
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.engines import table_steps
from lakehouse.stream.state_reader import state
from lakehouse.stream.strategy import strategy
from lakehouse.testing import assert_stream_equals_batch
from streaming_jobs.queries import SupervisedQuery

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

hit_topic = kafka(
    "hits", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def hits(hit_topic: DataFrame) -> DataFrame:
    return hit_topic


@row_table(layer="silver")
def positive(hits: DataFrame) -> DataFrame:
    return hits.where("value > 0")


@F.udf(LongType())
def slowly(value):  # of type hints Spark would make another kind of function
    time.sleep(0 if value < 1_000 else 60)
    return value


@row_table(layer="silver")
def slow(hits: DataFrame) -> DataFrame:
    return hits.withColumn("value", slowly("value"))


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def short(hits: DataFrame) -> DataFrame:
    return hits.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"])
def long(hits: DataFrame) -> DataFrame:
    return hits.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=sliding("20 seconds", "10 seconds"), keys=["user"])
def slid(hits: DataFrame) -> DataFrame:
    return hits.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=session("2 minutes"), keys=["user"])
def sessions(hits: DataFrame) -> DataFrame:
    return hits.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=count(3), keys=["user"])
def threes(hits: DataFrame) -> DataFrame:
    return hits.groupBy("window", "user").agg(F.sum("value").alias("value"))


@row_table(layer="silver", context=around(after="30 seconds"))
def near(hits: DataFrame) -> DataFrame:
    others = hits.select(F.col("at").alias("then"), F.col("user").alias("other"))
    return hits.join(
        others, F.expr("user <> other AND then BETWEEN at AND at + interval 30 seconds")
    )


@keyed_table(layer="gold", keys=["user"])
def totals(hits: DataFrame) -> DataFrame:
    return hits.groupBy("user").agg(F.sum("value").alias("value"))


@keyed_table(layer="gold", keys=["user"])
def averages(hits: DataFrame) -> DataFrame:
    return hits.groupBy("user").agg(F.avg(F.col("value").cast("decimal(18,0)")).alias("value"))


@versioned_table(layer="silver", keys=["user"])
def latest(hits: DataFrame) -> DataFrame:
    return hits.select("user", "at", "value", "_arrival")


def hit(second: float, value: int = 1) -> dict:
    return {"user": "a", "at": (START + timedelta(seconds=second)).isoformat(), "value": value}


@pytest.fixture
def stage(stage_of):
    return stage_of(HERE)


def until(true, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_which_engine_fills_which_table_is_decided_in_one_place(stage):
    found = {t.name: strategy(stage.session, t) for t in stage.session.catalog}
    assert found == {
        "hits": "ingest", "positive": "append", "slow": "append", "short": "close", "slid": "close", "threes": "close",
        "near": "close", "long": "state", "sessions": "state", "totals": "merge", "averages": "state",
        "latest": "versions",
    }  # fmt: skip
    stage.feed("hits", [hit(1)])
    stage.run(*found.keys() - {"hits"})
    folders = {folder.name for folder in (stage.session.settings.root / "_checkpoints").iterdir()}
    assert folders == {name for name, how in found.items() if how == "state"}, (
        "the others keep their position themselves"
    )
    averages = stage.session.catalog.table("averages")
    [kept] = state(stage.session, averages, {"user": "a"}).collect()
    assert (kept["user"], kept["sum"], kept["count"]) == ("a", 1, 1), "as Spark keeps it"
    with pytest.raises(RangeError, match="key=name: the columns of its key are user"):
        state(stage.session, averages, {"name": "a"})


def test_a_table_follows_its_input_and_is_idle_between(stage):
    query = queries.start(stage.session, stage.session.catalog.table("positive"))
    try:
        for number in range(1, 4):
            stage.feed("hits", [hit(number), hit(number, -1)])
            query.processAllAvailable()
            assert stage.rows("positive").count() == number
        until(lambda: not query.status["isTriggerActive"])
        assert query.isActive and [
            r.numInputRows for r in query.recentProgress if r.batchId >= 0
        ] == [2, 2, 2]
    finally:
        query.stop()
    assert not query.isActive and query.exception() is None
    stage.advance("hits", hit(7200))
    stage.run("positive")
    assert_stream_equals_batch(stage, "positive")


def test_windows_wait_for_something_that_closes(stage, monkeypatch):
    monkeypatch.setattr(table_steps, "_PATIENCE", 600)
    query = queries.start(stage.session, stage.session.catalog.table("short"))
    try:
        stage.feed("hits", [hit(1)])
        query.processAllAvailable()  # all that was before the first row has closed
        for second in (2, 3, 4):
            stage.feed("hits", [hit(second)])
        stage.advance("hits", hit(40))
        until(lambda: stage.rows("short").count() == 1)
        found = [r.numInputRows for r in query.recentProgress if r.batchId >= 0]
        assert found[0] == 1 and found[1] >= 4, (
            "one step reads all that came before the window closed"
        )
        stage.feed("hits", [hit(41)])  # closes nothing
        query.processAllAvailable()
        assert sum(r.numInputRows for r in query.recentProgress if r.batchId >= 0) == 7, (
            "all is read for who asks"
        )
    finally:
        query.stop()


def test_what_closes_nothing_is_noted_after_a_while(stage, monkeypatch):
    monkeypatch.setattr(table_steps, "_PATIENCE", 1)
    table = stage.session.catalog.table("short")
    query = queries.start(stage.session, table)
    try:
        stage.feed("hits", [hit(1)])
        query.processAllAvailable()
        stage.feed("hits", [hit(2)])
        until(lambda: sum(c.arrived for c in stage.session.commit_log(table).by_stream()) == 2)
        assert stage.rows("short").count() == 0
    finally:
        query.stop()


def test_a_step_that_is_cut_off_is_taken_by_the_next_life(stage):
    table = stage.session.catalog.table("slow")
    stage.feed("hits", [hit(1)])
    stage.run("slow")
    stage.feed("hits", [hit(2, 1_000)])
    query = queries.start(stage.session, table)
    until(lambda: query.in_flight)
    time.sleep(2)  # it computes, for a minute
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 30 and not query.isActive and query.exception() is None
    assert stage.rows("slow").count() == 1, "nothing of it is written"
    assert next(stage.session.commit_log(table).by_stream()).batch == 0


def test_a_function_that_exits_ends_its_query_and_not_without_a_word(stage):
    table = stage.session.catalog.table("positive")
    stage.feed("hits", [hit(1)])
    query = SupervisedQuery(stage.session, table, lambda point: sys.exit("no rows for you"))
    query.start()
    until(lambda: not query.active)
    query.tend()
    assert (
        query.status.state == "restarting" and "SystemExit: no rows for you" in query.status.error
    )


def test_a_query_that_ends_though_nobody_asked_for_it_is_started_again(stage):
    query = SupervisedQuery(stage.session, stage.session.catalog.table("positive"))
    query.start()
    try:
        query.query.stop()
        query.tend()
        assert (
            query.status.state == "restarting"
            and "ended without an error message" in query.status.error
        )
        query.due = datetime.now(UTC)
        query.tend()
        assert query.active and query.status.state == "running"
    finally:
        query.stop()
    assert query.failure() == "", "now somebody has"


def test_a_step_that_outlives_its_cutting_off_is_said(stage, capfd, monkeypatch):
    monkeypatch.setattr(advance, "_STOP", 0.5)
    go_on = threading.Event()
    stage.feed("hits", [hit(1)])
    query = queries.start(
        stage.session, stage.session.catalog.table("positive"), reached=lambda point: go_on.wait(60)
    )
    until(lambda: query.in_flight)
    query.stop()
    go_on.set()
    assert (
        "table=positive: its step has not ended 0 s after it was cut off" in capfd.readouterr().err
    )


def test_of_two_that_step_one_table_the_second_commit_is_refused(stage):
    table, go_on = stage.session.catalog.table("positive"), threading.Event()
    stage.feed("hits", [hit(1)])
    one = queries.start(
        stage.session,
        table,
        available_now=True,
        reached=lambda point: point == "begin" and go_on.wait(60),
    )
    until(lambda: one.in_flight)
    queries.start(stage.session, table, available_now=True).awaitTermination()
    go_on.set()
    with pytest.raises(
        StepFailed,
        match=r"CommitError: .*positive:stream:1 has committed batch 0 already, so another",
    ):
        one.awaitTermination()
    assert stage.rows("positive").count() == 1 and "batch 0, offsets from" in one.in_flight[1]
