"""Keyed tables of sums, counts and bounds: each step merges what is new with the rows that the table holds."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, keyed_table
from lakehouse.stream.strategy import strategy
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

sale_topic = kafka(
    "sales",
    schema="shop STRING, at TIMESTAMP NOT NULL, cents BIGINT, price DECIMAL(9,2), weight DOUBLE, paid BOOLEAN",
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def sales(sale_topic: DataFrame) -> DataFrame:
    return sale_topic


@keyed_table(layer="gold", keys=["shop"])
def shops(sales: DataFrame) -> DataFrame:
    """Each kind that can be merged; columns renamed and left out behind the aggregation; a key that may be null."""
    grouped = sales.groupBy(F.upper("shop").alias("name")).agg(
        F.sum("cents"),
        F.sum("price").alias("turnover"),
        F.count("price").alias("priced"),
        F.count_if("paid").alias("paid"),
        F.min("weight").alias("lightest"),
        F.max(F.struct("at", "cents")).alias("last"),
        F.bool_and("paid").alias("all_paid"),
        F.bit_xor("cents").alias("sum_of_bits"),
        F.expr("sum(cents) FILTER (WHERE paid)").alias("received"),
        F.avg("cents").alias("not_kept"),
    )
    return grouped.select(F.col("name").alias("shop"), *grouped.drop("name", "not_kept").columns)


@keyed_table(layer="gold", keys=["shop", "day"])
def days(sales: DataFrame) -> DataFrame:
    return sales.groupBy("shop", F.to_date("at").alias("day")).agg(F.count("*").alias("n"))


def by_shop(aggregates):
    def function(sales: DataFrame) -> DataFrame:
        return sales.groupBy("shop").agg(*aggregates())

    return function


OTHERS = {
    "averages": by_shop(lambda: [F.avg(F.col("price")).alias("a"), F.count("*").alias("n")]),
    "last_ones": by_shop(lambda: [F.max_by("cents", F.struct("at", "cents")).alias("last")]),
    "tried": by_shop(lambda: [F.try_sum("cents").alias("s")]),
    "computed": by_shop(lambda: [(F.sum("cents") / F.count("*")).alias("mean")]),
}


def sale(second: float, shop: str | None, cents: int | None, **more) -> dict:
    at = (START + timedelta(seconds=second)).isoformat()
    return {"shop": shop, "at": at, "cents": cents, **more}


def feed(stage: Stage, n: int) -> None:
    stage.feed("sales", [
        sale(10 * n, "a", n + 1, price=f"{n}.25", weight=3.0 - n, paid=n != 2),
        sale(10 * n + 1, "B", 5, price="1.00", weight=float("nan"), paid=True),
        sale(10 * n - 60, "b", None, price=None, weight=None, paid=None),  # late, and counted
        sale(10 * n, None, 7 << n, price="0.10", weight=-0.5, paid=False),
        sale(10 * n, f"only {n}", 1),
    ])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_each_kind_is_merged_and_what_a_crash_interrupts_is_merged_once(stage_of):
    stage = stage_of(HERE)
    found = {
        name: strategy(stage.session, stage.session.catalog.table(name))
        for name in ("shops", "days")
    }
    assert found == {"shops": "merge", "days": "merge"}
    feed(stage, 0)
    stage.run("shops", "days")
    for n, point in enumerate(COMMIT_POINTS, 1):
        feed(stage, n)
        stage.run("shops", "days", abort_at=point)
    feed(stage, 5)
    stage.run("shops", "days")
    shops = stage.session.catalog.table("shops")
    of_a = stage.session.read(shops).where("shop = 'A'").head().asDict()
    assert (of_a["sum(cents)"], of_a["priced"], of_a["paid"], of_a["lightest"]) == (21, 6, 5, -2.0)
    assert (str(of_a["turnover"]), of_a["all_paid"], of_a["received"]) == ("16.50", False, 18)
    for name, rows in {"shops": 9, "days": 10}.items():
        found = assert_stream_equals_batch(stage, name)
        assert (found.rows_in_table, found.rows_by_batch_runs) == (rows, 0)
    noted = DeltaTable(stage.session.path(shops)).history()
    modes = [commit.get("operationParameters", {}).get("outputMode") for commit in noted]
    assert modes.count("Update") >= 5, f"rows are exchanged, and not the table: {modes}"


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parallel
def test_a_step_with_more_rows_than_are_taken_at_once_is_merged_by_spark(stage_of):
    stage = stage_of(HERE)
    for n in range(3):
        feed(stage, n)
        stage.run("shops", by_spark=True)
    assert assert_stream_equals_batch(stage, "shops").rows_in_table == 6


@pytest.mark.parallel
def test_what_cannot_be_had_from_its_parts_is_left_to_spark(stage_of):
    stage = stage_of(HERE)
    sums = by_shop(lambda: [F.sum("weight").alias("s")])
    for name, function in (OTHERS | {"fractions": sums}).items():
        function.__name__ = name
        declared = keyed_table(layer="gold", keys=["shop"])(function)
        assert strategy(stage.session, declared) == "state", name
