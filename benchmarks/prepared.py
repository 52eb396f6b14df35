"""A step of an ingest table with a table that follows it, planned by Spark and prepared: time and CPU.

    python -m benchmarks.prepared [--steps 20] [--rows 200] [TABLE ...]

Both ways run in turn in one warm process, over the same input; the rows are compared.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import astuple
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import measure
from lakehouse import (
    count,
    duplicates,
    ingest_table,
    kafka,
    keyed_table,
    row_table,
    session,
    tumbling,
    window_table,
)
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.stream import prepared_steps, queries
from lakehouse.testing import Stage

AT = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {
    "taken": ("at", "shop", "cents", "euros"),
    "turnover": ("window", "shop", "cents", "n"),
    "threes": ("window", "shop", "cents"),
    "visits": ("window", "shop", "n"),
    "firsts": ("at", "shop", "cents"),
    "standing": ("shop", "cents", "last"),
    "by_oddness": ("odd", "cents", "shops"),
}
BETWEEN = {
    "standing": ("totals",),
    "by_oddness": ("totals",),
}  # tables between the ingest table and one
WARM_UP = 8  # steps before the first that counts
order_topic = kafka("orders", schema="shop STRING, cents BIGINT, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="1 second")
def orders(order_topic: DataFrame) -> DataFrame:
    return order_topic


@row_table(layer="silver")
def taken(orders: DataFrame) -> DataFrame:
    return orders.where("cents > 0").withColumn(
        "euros", F.expr("CAST(cents / 100 AS DECIMAL(12, 2))")
    )


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["shop"])
def turnover(orders: DataFrame) -> DataFrame:
    return orders.groupBy("window", "shop").agg(
        F.sum("cents").alias("cents"), F.count("*").alias("n")
    )


@window_table(layer="gold", window=count(3), keys=["shop"])
def threes(orders: DataFrame) -> DataFrame:
    return orders.groupBy("window", "shop").agg(F.sum("cents").alias("cents"))


@window_table(layer="gold", window=session(timedelta(milliseconds=700)), keys=["shop"])
def visits(orders: DataFrame) -> DataFrame:
    return orders.groupBy("window", "shop").agg(F.count_distinct("cents").alias("n"))


@row_table(layer="silver", deduplicate=duplicates("shop", within="3 seconds"))
def firsts(orders: DataFrame) -> DataFrame:
    return orders


@keyed_table(layer="silver", keys=["shop"])
def totals(orders: DataFrame) -> DataFrame:
    return orders.groupBy("shop").agg(F.sum("cents").alias("cents"), F.count("*").alias("n"))


@keyed_table(layer="gold", keys=["shop"])
def standing(totals: DataFrame, orders: DataFrame) -> DataFrame:
    last = orders.groupBy("shop").agg(F.max("at").alias("last"))
    return totals.select("shop", "cents").join(last, "shop")


@keyed_table(layer="gold", keys=["odd"])
def by_oddness(totals: DataFrame) -> DataFrame:
    odd = (F.col("cents") % 2).alias("odd")
    return totals.groupBy(odd).agg(F.sum("cents").alias("cents"), F.count("*").alias("shops"))


def _orders(step: int, rows: int) -> list[dict[str, object]]:
    """The rows of ten seconds, which end with it."""
    begin, each = AT + timedelta(seconds=10 * step), timedelta(seconds=10) / rows
    return [
        {"shop": f"shop-{n % 20}", "cents": n, "at": (begin + n * each).isoformat()}
        for n in range(rows)
    ]


class Way:
    """One table in a root of its own, whose first steps, so many, are planned as Spark plans."""

    def __init__(self, spark: SparkSession, root: Path, table: str, ordinary: int) -> None:
        self.table, self.ordinary = table, ordinary
        self.stage = Stage(spark, root / f"{table}-{ordinary}", sys.modules[__name__])
        self.costs: list[measure.Cost] = []
        session = self.stage.session
        queries.prepare(session, list(session.catalog))
        names = (*BETWEEN.get(table, ()), table)
        self.queries = [queries.start(session, session.catalog.table(name)) for name in names]

    def step(self, number: int, rows: int) -> None:
        prepared_steps.ORDINARY_FIRST = self.ordinary
        spark = self.stage.session.spark
        fed = _orders(number, rows)
        cpu, started = measure.own_cpu(spark), time.monotonic()
        self.stage.feed("orders", fed)  # a running query follows it at once
        for query in self.queries:
            query.processAllAvailable()
        seconds = time.monotonic() - started
        self.costs.append(measure.Cost(seconds, measure.own_cpu(spark) - cpu))

    def end(self) -> list[str]:
        for query in self.queries:
            query.stop()
        stored = self.stage.rows(self.table)
        return sorted(map(str, stored.select(*COLUMNS[self.table]).collect()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("tables", nargs="*", default=["taken", "turnover"])
    chosen = parser.parse_args()
    spark = spark_session.create(from_environment(), "prepared")
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as root:
        ways = [
            Way(spark, Path(root), t, first) for t in chosen.tables for first in (sys.maxsize, 1)
        ]
        for number in range(WARM_UP + chosen.steps):
            for way in ways:
                way.step(number, chosen.rows)
        print(f"{chosen.steps} steps of {chosen.rows} rows, medians in ms: wall, CPU")
        for ordinary, prepared in zip(ways[::2], ways[1::2], strict=True):
            if not (rows := ordinary.end()) or rows != prepared.end():
                raise measure.BenchmarkError(
                    f"{ordinary.table}: the two ways gave other rows; void"
                )
            for name, way in (("planned by Spark", ordinary), ("prepared", prepared)):
                costs = map(astuple, way.costs[WARM_UP:])
                wall, cpu = (1000 * median(values) for values in zip(*costs, strict=True))
                print(f"{way.table:<10} {name:<18} {wall:6.0f} {cpu:6.0f}")
    spark.stop()


if __name__ == "__main__":
    main()
