"""Steps of running queries by prepared plans: the same rows as the ordinary way, for each engine that has them."""

import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import ModuleType

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from lakehouse import (
    around,
    count,
    duplicates,
    expect,
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
from lakehouse.batch import compute
from lakehouse.declare.windows import Window
from lakehouse.ranges import Range
from lakehouse.storage.delta import delta_log, write_cache
from lakehouse.storage.session import nullable
from lakehouse.stream import prepared_steps, queries
from lakehouse.stream.prepared_steps import PreparedSteps
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform import lateness
from lakehouse.transform.plan import plan_of

AT = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = 8
order_topic = kafka(
    "orders", schema="id STRING NOT NULL, shop STRING, cents BIGINT, at TIMESTAMP NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="1 second")
def orders(order_topic: DataFrame) -> DataFrame:
    return order_topic


payment_topic = replace(order_topic, address="payments")


@ingest_table(layer="bronze", event_time="at", delay="1 second")
def payments(payment_topic: DataFrame) -> DataFrame:
    return payment_topic


@row_table(layer="silver", expectations=[expect.column_values_to_be_between("cents", min_value=0)])
def paid(orders: DataFrame) -> DataFrame:
    return orders.where("cents IS NOT NULL").withColumn(
        "euros", F.expr("CAST(cents / 100 AS DECIMAL(12, 2))")
    )


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["shop"])
def turnover(paid: DataFrame) -> DataFrame:
    return paid.groupBy("window", "shop").agg(F.sum("cents").alias("cents"))


@window_table(layer="gold", window=tumbling("30 seconds"), keys=["shop"])
def turnover_in_half_minutes(turnover: DataFrame) -> DataFrame:
    return turnover.groupBy("window", "shop").agg(F.sum("cents").alias("cents"))


@keyed_table(layer="gold", keys=["shop"])
def totals(orders: DataFrame) -> DataFrame:
    return orders.groupBy("shop").agg(F.sum("cents").alias("cents"), F.count("*").alias("orders"))


@versioned_table(layer="gold", keys=["shop"])
def history(orders: DataFrame) -> DataFrame:
    return orders.select("shop", "cents", "at", "_arrival")


@row_table(layer="silver")
def both(orders: DataFrame, payments: DataFrame) -> DataFrame:
    rows = [each.select("id", "at", "_arrival") for each in (orders, payments)]
    return rows[0].unionByName(rows[1])


@row_table(layer="silver", context=around(before="30 seconds"))
def settled(payments: DataFrame, orders: DataFrame) -> DataFrame:
    """Payments, with their order of the half minute before."""
    before = orders.select(F.col("id").alias("of"), F.col("at").alias("ordered"))
    met = F.expr("of = id AND ordered <= at AND ordered >= at - interval 30 seconds")
    return payments.join(before, met, "left").drop("of")


@window_table(layer="gold", window=sliding("20 seconds", "10 seconds"), keys=["shop"])
def open_sums(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Orders and payments of a shop in the same twenty seconds."""
    ordered = orders.groupBy("window", "shop").agg(F.count("*").alias("orders"))
    settled = payments.groupBy("window", "shop").agg(F.count("*").alias("payments"))
    return ordered.join(settled, ["window", "shop"], "full").na.fill(0)


@window_table(layer="gold", window=count(3), keys=["shop"])
def threes(orders: DataFrame) -> DataFrame:
    return orders.groupBy("window", "shop").agg(F.sum("cents").alias("cents"))


@window_table(layer="gold", window=session("9 seconds"), keys=["shop"])
def visits(orders: DataFrame) -> DataFrame:
    visited = orders.where("cents IS NOT NULL").groupBy("window", "shop")
    return visited.agg(F.count_distinct("id").alias("orders"))


@row_table(layer="silver", deduplicate=duplicates("shop", within="20 seconds"))
def firsts(orders: DataFrame) -> DataFrame:
    return orders


@keyed_table(layer="gold", keys=["shop"])
def standing(totals: DataFrame, payments: DataFrame) -> DataFrame:
    """The totals of a shop with its payments: what belongs to a shop is computed again."""
    paid = payments.groupBy("shop").agg(F.count("*").alias("payments"))
    return totals.join(paid, "shop")


@keyed_table(layer="gold", keys=["odd"])
def by_oddness(totals: DataFrame) -> DataFrame:
    """Sums over a keyed table, between whose groups shops move."""
    odd = (F.col("orders") % 2).alias("odd")
    return totals.groupBy(odd).agg(F.sum("cents").alias("cents"), F.count("*").alias("shops"))


@row_table(layer="silver")
def marked(orders: DataFrame) -> DataFrame:
    return orders.withColumn("marked_at", F.lit(time.monotonic_ns()))


PREPARED = {
    "paid": ("rows",),
    "turnover": ("range", "counts paid"),
    "turnover_in_half_minutes": ("range", "counts turnover"),
    "totals": ("new rows",),
    "history": ("new rows",),
    "both": ("rows", "counts orders", "counts payments"),
    "settled": ("range", "counts orders", "counts payments"),
    "open_sums": ("range", "counts orders", "counts payments"),
    "threes": ("range", "counts orders"),
    "visits": ("range", "counts orders"),
    "firsts": ("rows",),
    "standing": ("groups that changed", "rows"),
    "by_oddness": ("sums",),
}
NAMES = tuple(PREPARED)


def order_at(n: int) -> datetime:
    return AT + timedelta(seconds=3 * n)


def order(n: int, **more) -> dict:
    return {"id": str(n), "shop": "abc"[n % 3], "cents": n, "at": order_at(n).isoformat()} | more


def test_running_queries_go_on_by_prepared_plans(spark, tmp_path, monkeypatch):
    used: Counter[tuple[str, str]] = Counter()
    few = PreparedSteps.few

    def counted(self, *arguments, name="rows", **named):
        prepared = few(self, *arguments, name=name, **named)
        used[self._table.name, name] += prepared is not None
        return prepared

    monkeypatch.setattr(PreparedSteps, "few", counted)
    monkeypatch.setattr(prepared_steps, "ORDINARY_FIRST", 1)
    # as a first guess, sessions do not begin earlier than that
    monkeypatch.setattr(Window, "reach", property(lambda window: window.size))
    widened, whole = [], compute.holding_whole_sessions

    def noted(context, *given):
        found = whole(context, *given)
        widened.append(found != context)
        return found

    monkeypatch.setattr(compute, "holding_whole_sessions", noted)
    stage = Stage(spark, tmp_path, __import__(__name__, fromlist=["orders"]))
    session = stage.session
    queries.prepare(session, list(session.catalog))
    stage.feed("orders", [order(0)])
    stage.feed("payments", [order(0)])
    running = {name: queries.start(session, session.catalog.table(name)) for name in NAMES}
    for step in range(1, 2 * STEPS, 2):
        stage.feed(
            "orders",
            [order(step), order(step + 1, cents=None if step % 4 == 1 else -step), b"not an order"],
        )
        stage.feed("payments", [order(step - 1), order(step)])
        for name in NAMES:
            running[name].processAllAvailable()
    ways = {name: query.run.prepared.ways for name, query in running.items()}
    for query in running.values():
        query.stop()
    assert all({*keys} <= ways[name].keys() for name, keys in PREPARED.items())
    assert not any(why for of_query in ways.values() for why in of_query.values()), ways
    # rows that Spark wrote, as each second time, are not in memory
    # half a minute ends twice or three times
    least = Counter({"turnover_in_half_minutes": 1})
    few_of = [(n, key) for n, keys in PREPARED.items() for key in keys]
    assert all(used[n, key] >= (least[n] or 3) for n, key in few_of), used
    assert True in widened, "no visit had begun before the first guess"
    stage.advance("orders", order(2000))
    stage.advance("payments", order(2000))
    stage.run(*NAMES)
    for name in NAMES:
        assert_stream_equals_batch(stage, name)


def test_a_function_that_is_another_each_time_goes_the_ordinary_way(
    spark, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(prepared_steps, "ORDINARY_FIRST", 0)
    module = ModuleType(__name__)
    module.order_topic, module.orders, module.marked = order_topic, orders, marked
    stage = Stage(spark, tmp_path, module)
    with caplog.at_level("INFO", logger=prepared_steps.__name__):
        for n in (1, 2):  # the second is written without Spark, and is in memory
            stage.feed("orders", [order(n)])
            stage.run("marked")
    assert (
        "table=marked, steps=rows: Spark plans each of them: the function gives another plan each time"
        in caplog.text
    )
    assert stage.rows("marked").count() == 2


def test_few_rows_of_a_span_are_those_that_spark_reads(spark, tmp_path, monkeypatch):
    module = ModuleType(__name__)
    module.order_topic, module.orders = order_topic, orders
    stage = Stage(spark, tmp_path, module)
    session, table = stage.session, stage.session.catalog.table("orders")
    with monkeypatch.context() as small:
        small.setattr(write_cache, "_BYTES", 0)
        stage.feed("orders", [order(n, shop=None if n % 7 == 0 else "a") for n in range(20)])
    for begin in (20, 30):
        stage.feed("orders", [order(n, cents=None) for n in range(begin, begin + 10)])
    columns = nullable(plan_of(session, table).schema)
    added = StructType([*columns, StructField("more", StringType())])  # as after a new declaration
    other = StructType(
        [StructField("cents", BinaryType()) if f.name == "cents" else f for f in columns]
    )
    asked = [
        Range(order_at(a), order_at(b)) for a, b in ((0, 40), (3, 17), (12, 33), (39, 40), (90, 99))
    ]
    for span in asked:
        by_spark = session.spanning(table, span).where(lateness.between(F.col("at"), span))
        wanted = sorted(map(str, by_spark.select("id", "shop", "cents").toArrow().to_pylist()))
        for schema in (columns, added):
            few = session.few_spanning(table, span, schema, 40)
            assert few.column_names == schema.names
            assert sorted(map(str, few.select(["id", "shop", "cents"]).to_pylist())) == wanted
    assert session.few_spanning(table, asked[0], columns, 39) is None, "more than that"
    assert session.few_spanning(table, asked[0], other, 40) is None, "Arrow has no such cast"
    [file, *_] = delta_log.files(session.path(table))
    delta_log.data_file(session.path(table), file).unlink()
    assert session.few_spanning(table, asked[0], columns, 40) is None, "a file is gone"
