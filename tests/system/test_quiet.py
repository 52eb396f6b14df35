"""Event time that goes on while topics are silent (`quiet_timeout`): the last windows close, by a commit that is a fact."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.catalog import catalog_of
from lakehouse.declare.table import kafka, session, table, tumbling
from lakehouse.ranges import EPOCH
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage import checkpoints, commit_log_repair
from lakehouse.storage.commit_log import frontier
from lakehouse.storage.lake import Lake
from lakehouse.stream import queries
from lakehouse.testing import COMMIT_POINTS, Aborted, Stage, assert_stream_equals_batch
from lakehouse.watermarks import Silence

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "user STRING NOT NULL, at TIMESTAMP NOT NULL"

click_topic = kafka("clicks", schema=SCHEMA, quiet_timeout="2 seconds")
still_topic = kafka("still", schema=SCHEMA)


@table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@table(layer="silver")
def of_ann(clicks: DataFrame) -> DataFrame:
    return clicks.where("user = 'ann'")


@table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def by_ten_seconds(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@table(layer="gold", window=tumbling("1 hour"))
def by_hour(of_ann: DataFrame) -> DataFrame:
    return of_ann.groupBy("window").agg(F.count("*").alias("clicks"))


@table(layer="gold", window=session("1 minute"), keys=["user"])
def sessions(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window", "user").agg(F.count("*").alias("clicks"))


@table(layer="bronze", event_time="at", delay="5 seconds")
def still_too(click_topic: DataFrame, still_topic: DataFrame) -> DataFrame:
    return click_topic.unionByName(still_topic)


TABLES = ["of_ann", "by_ten_seconds", "by_hour", "sessions"]


def at(seconds: float, user: str = "ann") -> dict:
    return {"user": user, "at": (START + timedelta(seconds=seconds)).isoformat()}


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def stage(spark, tmp_path) -> Stage:
    return Stage(spark, tmp_path, HERE)


def test_a_silence_is_noted_after_its_time_and_then_ever_more_rarely():
    silence, noted = Silence(30, 1000), []
    for now in range(1000, 1000 + 24 * 3600):
        if passed := silence.passed(now):
            noted.append((now - 1000, passed))
    assert noted[0] == (30, 30) and sum(passed for _, passed in noted) <= 24 * 3600
    assert 50 < len(noted) < 100
    for (before, _), (later, passed) in pairwise(noted):
        assert passed == later - before <= max(30, before / 9 + 1)


def test_what_was_not_watched_is_no_silence():
    silence = Silence(30, 0)
    assert not silence.is_due(29) and silence.is_due(30)
    silence.broken(29)
    assert not silence.passed(58) and silence.passed(59) == 30
    assert not Silence(0, 0).is_due(10**9)


def test_all_topics_of_a_table_must_say_so():
    catalog = catalog_of([HERE])
    for name in ("clicks", *TABLES):
        assert catalog.quiet_timeout(catalog.table(name)) == timedelta(seconds=2)
    assert not catalog.quiet_timeout(catalog.table("still_too"))


def test_the_last_windows_close_while_no_row_comes(stage):
    stage.feed("clicks", [at(1), at(2), at(14), at(3, "bob")])
    stage.run(*TABLES)
    assert stage.frontier("clicks") == after(9) and not stage.rows("by_ten_seconds").count()
    stage.quiet("clicks", timedelta(seconds=11))
    stage.run(*TABLES)
    assert {stage.frontier(name) for name in ("clicks", "of_ann", "by_ten_seconds")} == {after(20)}
    assert stage.rows("by_ten_seconds").count() == 3
    # on time are those that are not behind it; what comes later than it says is late
    stage.feed("clicks", [at(21), at(8)])
    stage.quiet("clicks", timedelta(hours=2))
    stage.run(*TABLES)
    assert stage.frontier("clicks") == after(20 + 7200)
    for name in TABLES:
        assert_stream_equals_batch(stage, name)
    lines = list(stage.lake.commit_log(stage.lake.catalog.table("by_ten_seconds")).by_stream())
    assert sum(line.late for line in lines) == 1
    assert [row.clicks for row in stage.rows("by_hour").collect()] == [5]
    assert sorted(row.clicks for row in stage.rows("sessions").collect()) == [1, 4]


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Settings]:
    settings = Settings(root=tmp_path_factory.mktemp("broker"), jars=from_environment().jars)
    kafka_broker.start(settings, jars.resolve(settings.jars))
    yield settings
    kafka_broker.stop(settings)


@pytest.fixture
def lake(served, spark) -> Lake:
    lake = Lake(spark, replace(served, tables=(__name__,)), catalog_of([HERE]))
    kafka_broker.ensure_topics(lake.settings, {"clicks": 2, "still": 1})
    queries.prepare(lake, list(lake.catalog))
    return lake


def send(lake: Lake, *rows: dict) -> None:
    producer = Producer(client_config(lake.settings) | {"acks": "all", "log_level": "0"})
    for number, row in enumerate(rows):
        producer.produce("clicks", json.dumps(row), b"key", partition=number % 2)
    assert producer.flush(30) == 0


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def frontier_of(lake: Lake, name: str) -> datetime:
    return frontier(lake.settings, lake.catalog.table(name)) or EPOCH


def written(lake: Lake, name: str) -> int:
    return sum(line.written for line in lake.commit_log(lake.catalog.table(name)).by_stream())


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_live_query_closes_its_last_windows_through_crashes_and_not_while_the_broker_is_away(
    lake,
):
    send(lake, at(1), at(14), at(2, "bob"), at(13, "bob"))
    table = lake.catalog.table("clicks")
    counted = queries.start(lake, lake.catalog.table("by_ten_seconds"))
    crashed = []
    for point in COMMIT_POINTS:

        def crash(now: str, point: str = point) -> None:
            # the first step has the rows, and each later one none
            if now == point and written(lake, "clicks"):
                crashed.append(now)
                raise Aborted(now)

        before = frontier_of(lake, "clicks")
        query = queries.start(lake, table, reached=crash)
        until(lambda query=query: not query.isActive, f"no step of silence came to {point}")
        assert Aborted.__name__ in str(query.exception())
        pending = checkpoints.standing(lake.settings, table).pending
        assert bool(pending) == (point in ("rows", "quarantine"))
        if point == "commit_log":
            assert frontier_of(lake, "clicks") >= before + timedelta(seconds=2)
    assert crashed == list(COMMIT_POINTS)
    query = queries.start(lake, table)
    try:
        until(lambda: written(lake, "by_ten_seconds") == 4, "the last windows did not close")
        kafka_broker.stop(lake.settings)
        until(lambda: bool(query.trouble), "the query did not notice that its broker was away")
        stood = frontier_of(lake, "clicks")
        time.sleep(5)
        assert frontier_of(lake, "clicks") == stood, "nobody can say that the topic is quiet"
        kafka_broker.start(lake.settings, jars.resolve(lake.settings.jars))
        until(lambda: frontier_of(lake, "clicks") > stood, "event time did not go on again")
    finally:
        query.stop()
        counted.stop()
    lines = list(lake.commit_log(table).by_stream())
    assert [line.batch for line in lines] == list(range(len(lines)))[::-1]
    assert sum(line.arrived for line in lines) == 4
    certificate = reconciliation.reconcile(lake, lake.catalog.table("by_ten_seconds"))
    assert (certificate.verdict, certificate.rows_recomputed) == ("EQUAL", 4)
    # what was noted is a fact of the table's own log: the commit log can be made again from it
    lake.commit_log(table).path.unlink()
    assert "made again from the table's own commits" in commit_log_repair.mend(lake.settings, table)
    made = list(lake.commit_log(table).by_stream())
    # the last step is looked at once more when the query is started again
    assert [line.frontier for line in made] == [line.frontier for line in lines[1:]]
