"""Rows put in again and rows erased, of a record of several topics whose event time is that of arrival."""

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import expect, ingest_table, kafka, tumbling, window_table
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.maintenance import erasure, replay_quarantine
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.testing import Stage

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

letter_topic = kafka("letters", schema="text STRING NOT NULL")
parcel_topic = kafka("parcels", schema="text STRING NOT NULL")


@ingest_table(
    layer="bronze",
    event_time="ingestion_time",
    expectations=[expect.column_values_to_not_be_null("kilos")],
)
def post(letter_topic: DataFrame, parcel_topic: DataFrame) -> DataFrame:
    return letter_topic.unionByName(parcel_topic).withColumn(
        "kilos", F.expr("try_cast(text AS INT)")
    )


def mended(letter_topic: DataFrame, parcel_topic: DataFrame) -> DataFrame:
    """Knows a unit, too."""
    both = letter_topic.unionByName(parcel_topic)
    return both.withColumn("kilos", F.expr("try_cast(replace(text, ' kg', '') AS INT)"))


@window_table(layer="gold", window=tumbling("30 minutes"))
def weighed(post: DataFrame) -> DataFrame:
    return post.groupBy("window").agg(F.sum("kilos").alias("kilos"))


@pytest.fixture
def stage(spark, tmp_path) -> Stage:
    """Two hours of arrivals from two topics with equal offsets, in each one whose unit is not understood."""
    stage = Stage(spark, tmp_path, HERE)
    for minute in (0, 40, 70):
        stage._now = START + timedelta(minutes=minute)
        for source in ("letter_topic", "parcel_topic"):
            stage.feed("post", [{"text": "1"}, {"text": "2 kg"}, "no JSON"], source=source)
    stage._now = START + timedelta(hours=3)
    for _ in range(2):  # the second carries the watermark
        stage.feed("post", [{"text": "4"}], source="letter_topic")
    stage.run("weighed")
    return stage


def of(stage: Stage, name: str) -> Table:
    return stage.session.catalog.table(name)


def weights(stage: Stage) -> dict[int, int]:
    rows = stage.rows("weighed").collect()
    minutes = {
        int((r.window.start.astimezone(UTC) - START).total_seconds() / 60): r.kilos for r in rows
    }
    return {minute: kilos for minute, kilos in minutes.items() if minute < 120}


@pytest.mark.slow
@pytest.mark.parallel
def test_each_is_put_in_or_erased_at_the_hour_of_its_arrival_whatever_topic_it_came_from(stage):
    assert weights(stage) == {0: 2, 30: 2, 60: 2}
    other = replace(of(stage, "post"), transformation=mended)
    tables = {t.name: other if t.name == "post" else t for t in stage.session.catalog}
    stage.session = replace(stage.session, catalog=replace(stage.session.catalog, tables=tables))
    done = replay_quarantine.replay(stage.session, of(stage, "post"))
    assert {hour.hour: n for hour, n in done.hours.items()} == {0: 4, 1: 2} and sum(
        done.bad.values()
    ) == 6
    assert weights(stage) == {0: 6, 30: 6, 60: 6}
    positions = stage.rows("post").select("_arrival.topic", "_arrival.offset")
    assert positions.count() == positions.distinct().count() == 14
    for hour in (4, 5, 6):  # two micro-batches on, no stream may still read what is erased
        stage._now = START + timedelta(hours=hour)
        stage.advance("post", {"text": "4"}, source="letter_topic")
        stage.run("weighed")
    erased = erasure.erase(
        stage.session, of(stage, "post"), "kilos = 2 AND _arrival.topic = 'parcels'"
    )
    assert {hour.hour: n for hour, n in erased.hours.items()} == {0: 2, 1: 1}
    assert weights(stage) == {0: 4, 30: 4, 60: 4}
    found = reconciliation.reconcile_parts(
        stage.session, of(stage, "weighed"), Range(START, START + timedelta(hours=2))
    )
    assert {c.verdict for c in found} == {"EQUAL"}
    with pytest.raises(RangeError, match="would come back; erase them in its ingest table"):
        erasure.planned(stage.session, of(stage, "weighed"), "kilos = 2")
