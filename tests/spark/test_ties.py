"""A function that takes any of several rows that tie: stream and batch may differ by it, and the certificate says so."""

import os
import sys

import pytest
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, keyed_table, tumbling, window_table
from lakehouse.reconcile import diagnosis, reconciliation
from lakehouse.transform.analysis import determinism

tick_topic = kafka("ticks", schema="id STRING, at TIMESTAMP, price BIGINT")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def ticks(tick_topic: DataFrame) -> DataFrame:
    return tick_topic


def one_of_those_that_tie() -> Column:
    """Which one is Spark's affair, by the files that it reads first: here the test says it."""
    return F.max_by(F.col("price") + int(os.environ.get("OTHER", "0")), "at").alias("price")


@keyed_table(layer="gold", keys=["id"])
def quotes(ticks: DataFrame) -> DataFrame:
    return ticks.groupBy("id").agg(one_of_those_that_tie())


@window_table(layer="gold", window=tumbling("1 hour"), keys=["id"])
def closing_prices(ticks: DataFrame) -> DataFrame:
    return ticks.groupBy("window", "id").agg(one_of_those_that_tie())


@pytest.mark.slow
@pytest.mark.parallel
def test_the_cause_of_a_difference_is_that_rows_tie(stage_of, monkeypatch):
    stage = stage_of(sys.modules[__name__])
    at = "2026-01-01T00:00:10Z"
    stage.feed("ticks", [{"id": "a", "at": at, "price": 1}, {"id": "a", "at": at, "price": 2}])
    stage.advance("ticks", {"id": "b", "at": "2026-01-01T02:00:00Z", "price": 9})
    stage.run("quotes", "closing_prices")
    monkeypatch.setenv("OTHER", "1")
    for name in ("quotes", "closing_prices"):
        table_of_it = stage.session.catalog.table(name)
        (found, *_) = reconciliation.reconcile_parts(stage.session, table_of_it)
        assert found.verdict == "DIFFERENT" and found.changed, found
        assert found.cause.startswith(f"{diagnosis.TIED}: max_by(")


@pytest.mark.parametrize(
    ("taken", "ties"),
    [
        ("max_by(price, at)", True),
        ("min_by(struct(price, id), struct(at, price))", True),
        ("max_by(price, struct(at, price))", False),
        ("max(struct(at, price))", False),
    ],
)
def test_only_what_is_ordered_by_all_that_is_taken_cannot_tie(spark, taken, ties):
    rows = spark.createDataFrame([], "id STRING, at TIMESTAMP, price BIGINT")
    assert bool(determinism.ties(rows.groupBy("id").agg(F.expr(taken)))) == ties


def test_places_in_an_order_may_tie_and_so_may_rows_behind_a_limit(spark):
    rows = spark.createDataFrame([], "id STRING, at TIMESTAMP, price BIGINT")
    by_time = Window.partitionBy("id").orderBy("at")
    placed = rows.select(F.lag("price").over(by_time), F.rank().over(by_time))
    assert [each.partition("(")[0] for each in determinism.ties(placed)] == ["lag"]
    assert determinism.ties(rows.orderBy("price").limit(3)) == ["GlobalLimit 3"]
