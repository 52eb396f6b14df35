"""Deduplication: of rows of one key within the horizon the first to arrive is kept, however the input is cut."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import duplicates, ingest_table, kafka, row_table, tumbling, window_table
from lakehouse.testing import Stage, assert_stream_equals_batch

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

order_topic = kafka("orders", schema="id STRING, at TIMESTAMP NOT NULL, amount BIGINT NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def orders(order_topic: DataFrame) -> DataFrame:
    return order_topic


@row_table(layer="silver", deduplicate=duplicates("id", within="1 minute"))
def distinct_orders(orders: DataFrame) -> DataFrame:
    return orders


@window_table(layer="gold", window=tumbling("1 hour"))
def turnover(distinct_orders: DataFrame) -> DataFrame:
    return distinct_orders.groupBy("window").agg(F.sum("amount").alias("amount"))


def at(seconds: float, id: str | None, amount: int) -> dict:
    return {"id": id, "at": (START + timedelta(seconds=seconds)).isoformat(), "amount": amount}


@pytest.mark.slow
@pytest.mark.parallel
def test_the_first_to_arrive_is_kept_however_the_input_is_cut(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    # the second partition's offsets are smaller; within a batch partition 0 comes first
    stage.feed(
        "orders",
        [
            (0, at(10, "a", 1)),
            (1, at(10, "a", 2)),
            (0, at(9, "a", 3)),
            (0, at(0, None, 4)),
            (0, at(0, None, 5)),
        ],
    )
    stage.run("distinct_orders", files_per_batch=1)
    stage.feed(
        "orders",
        [(1, at(70, "a", 6)), (1, at(71, "a", 7)), (1, at(200, "b", 8)), (0, at(3_590, "c", 9))],
    )
    stage.feed(
        "orders",
        [
            (0, at(3_610, "c", 10)),
            (0, at(190, "b", 11)),
            (0, at(140, "b", 12)),
            (1, at(139, "b", 13)),
        ],
    )
    for n in (7_300, 14_500):
        stage.advance("orders", at(n, f"last {n}", 0))
    stage.run("distinct_orders", "turnover", files_per_batch=4, abort_at="rows")
    kept = {
        (r["id"], r.amount) for r in stage.rows("distinct_orders").where("amount > 0").collect()
    }
    # 7 is a minute and more from every row of "a" but 6, which came before it and is itself a duplicate;
    # 13 is more than a minute from 8, but not from 11 and 12, which came before it
    assert kept == {("a", 1), (None, 4), (None, 5), ("b", 8), ("c", 9)}
    assert_stream_equals_batch(stage, "distinct_orders")
    assert_stream_equals_batch(stage, "turnover")
    assert stage.rows("turnover").agg(F.sum("amount")).head()[0] == 27
    commits = stage.session.commit_log(stage.session.catalog.table("distinct_orders")).by_stream()
    assert sum(c.filtered for c in commits) == 8 + 6, (
        "the duplicates, and those of the rows that moved time on"
    )
