"""One case of `benchmarks.by_key`, again and again in one process.

    python -m benchmarks.by_key_run CASE ROWS KEYS TIMES RESULT        (RESULT: a JSON file of seconds, ours and Spark's)

Each computes rows and writes them as Parquet, as any table is.
as-of: payments joined with the version of their customer that was valid at their time, of KEYS versions of KEYS / 10
customers; beside it the same payments joined with the last version of each. process: a process function that counts the rows
of KEYS keys and tells the count when a timer is due; beside it a count by window and key.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.measure import BenchmarkError
from lakehouse.declare.columns import ARRIVAL_TYPE
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.transform.functions.process import KeyedProcess, Row, State, Timers, process
from lakehouse.transform.versions import as_of_join

START = datetime(2026, 1, 1, tzinfo=UTC)
STEP = timedelta(hours=1)  # each customer has another version that often
VERSIONS = 10
WITHIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Case:
    """What makes the rows, and what is `wanted` to be `told` of them."""

    rows: Callable[[], DataFrame]
    told: tuple[Column, ...]
    wanted: tuple[int, ...]


def at(seconds: str) -> Column:
    return F.timestamp_micros(
        F.lit(int(START.timestamp() * 1e6)) + F.expr(f"CAST(({seconds}) * 1000000 AS BIGINT)")
    )


def stored(rows: DataFrame, path: Path) -> DataFrame:
    rows.write.parquet(str(path))
    return rows.sparkSession.read.parquet(str(path))


def joins(spark: SparkSession, root: Path, rows: int, keys: int) -> tuple[Case, Case]:
    customers, step = keys // VERSIONS, int(STEP.total_seconds())
    payments = spark.range(rows).select(
        "id",
        F.expr(f"pmod(xxhash64(id), {customers})").alias("customer"),
        at(f"id * {VERSIONS * step} / {rows}").alias("at"),
    )
    number = f"id div {customers}"
    versions = spark.range(keys).select(
        F.expr(f"id % {customers}").alias("customer"),
        F.expr(number).alias("version"),
        at(f"({number}) * {step}").alias("valid_from"),
        F.when(F.expr(f"{number} < {VERSIONS - 1}"), at(f"({number} + 1) * {step}")).alias(
            "valid_to"
        ),
    )
    payments, versions = stored(payments, root / "payments"), stored(versions, root / "versions")
    last = stored(versions.where("valid_to IS NULL").select("customer", "version"), root / "last")
    own = F.expr(
        f"version = CAST(FLOOR((unix_micros(at) - {int(START.timestamp() * 1e6)}) / {step * 1_000_000}) AS BIGINT)"
    )
    return (
        Case(
            lambda: as_of_join(payments, versions, "customer", "at", ["version"]),
            (F.count_if(own), F.count("at")),
            (rows, rows),
        ),
        Case(
            lambda: payments.join(last, "customer", "left"),
            (F.count("version"), F.count("at")),
            (rows, rows),
        ),
    )


class Counting(KeyedProcess):
    """How many rows a key had until it was silent for a minute."""

    output = "key BIGINT, at TIMESTAMP, n BIGINT"

    def on_row(self, state: State, row: Row, timers: Timers) -> tuple[Row, ...]:
        state.update(key=row["key"], n=state.get("n", 0) + 1)
        timers.clear()
        timers.set(row["at"] + timedelta(minutes=1))
        return ()

    def on_timer(self, state: State, at: datetime, timers: Timers) -> Iterator[Row]:
        yield dict(state)
        state.clear()


def processes(spark: SparkSession, root: Path, rows: int, keys: int) -> tuple[Case, Case]:
    arrival = (
        f"CAST(struct(timestamp_micros(0), 't', 0, id, timestamp_micros(0)) AS {ARRIVAL_TYPE})"
    )
    made = spark.range(rows).select(
        F.expr(f"id % {keys}").alias("key"),
        at(f"id * 1e0 / {rows}").alias("at"),
        F.expr(arrival).alias("_arrival"),
    )
    given, counted = stored(made, root / "rows"), (F.sum("n"), F.count("n"))
    by_window = given.groupBy(F.window("at", "10 minutes"), "key").agg(F.count(F.lit(1)).alias("n"))
    return (
        Case(
            lambda: process(given, by=["key"], function=Counting(), within=WITHIN, at="at"),
            counted,
            (rows, keys),
        ),
        Case(lambda: by_window, counted, (rows, keys)),
    )


def spent(case: Case, result: Path) -> float:
    """Seconds to compute the rows and write them; then they are looked at. Raises BenchmarkError."""
    began = time.monotonic()
    case.rows().write.mode("overwrite").parquet(str(result))
    seconds = time.monotonic() - began
    found = tuple(SparkSession.active().read.parquet(str(result)).agg(*case.told).head())
    if found != case.wanted:
        raise BenchmarkError(f"{result.name}: {found} for {case.wanted}; the run is void")
    return seconds


if __name__ == "__main__":
    case, rows, keys, times, result = sys.argv[1], *map(int, sys.argv[2:5]), Path(sys.argv[5])
    settings = from_environment()
    spark = spark_session.create(settings, case)
    folder = settings.root / case.replace("-", "_")
    ours, other = (joins if case == "as-of" else processes)(spark, folder, rows, keys)
    turns = [
        (spent(ours, folder / "ours"), spent(other, folder / "spark")) for _ in range(times + 1)
    ][1:]
    result.write_text(
        json.dumps({"ours": [turn[0] for turn in turns], "spark": [turn[1] for turn in turns]})
    )
    spark.stop()
