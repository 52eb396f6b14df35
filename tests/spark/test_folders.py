"""Ingest tables that read folders and tables of others: each record once, whatever becomes of the files meanwhile."""

import gzip
import json
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.table import delta_table, folder, table, tumbling
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.topic_check import check
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "n BIGINT NOT NULL, at TIMESTAMP NOT NULL, cents DECIMAL(12,2)"


def readings(source: DataFrame) -> DataFrame:
    return source


def per_minute(readings: DataFrame) -> DataFrame:
    return readings.groupBy("window").agg(F.count("*").alias("rows"), F.sum("cents").alias("cents"))


def stage_of(
    spark, root: Path, source, *, event_time: str = "at", derived: bool = False, **settings
) -> Stage:
    module = ModuleType(__name__)
    module.source = source
    module.readings = table(layer="bronze", event_time=event_time, delay="5 seconds")(readings)
    if derived:
        module.per_minute = table(layer="gold", window=tumbling("1 minute"))(per_minute)
    return Stage(spark, root, module, **settings)


def row(n: int, second: float | None = None) -> dict:
    at = START + timedelta(seconds=n if second is None else second)
    return {"n": n, "at": at.isoformat(), "cents": f"{n}.25"}


def put(path: Path, *rows: dict | str, age: float = 0) -> Path:
    """A file of these lines, written beside and moved to its place."""
    lines = "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows)
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    if age:
        at = START.timestamp() + age
        os.utime(beside, (at, at))
    return beside.rename(path)


def numbers(stage: Stage) -> list[int]:
    return sorted(each.n for each in stage.rows("readings").select("n").collect())


def once(stage: Stage) -> None:
    lake = stage.lake
    (found,) = check(lake.settings, lake.catalog, lake.catalog.table("readings"))
    assert (found.missing, found.doubled) == (0, 0), found


def test_a_stream_that_crashes_at_each_commit_point_has_each_record_once_and_equals_batch(
    spark, tmp_path
):
    there = tmp_path / "incoming"
    there.mkdir()
    source = folder(str(there), schema=SCHEMA, pattern="*.json*", settle="0 seconds")
    stage = stage_of(spark, tmp_path / "root", source, derived=True, max_offsets_per_trigger=7)
    sent = 0
    for number, point in enumerate(COMMIT_POINTS):
        for part in range(2):
            rows: list = [row(sent + i, 60 * number + 9 * i + part) for i in range(5)]
            if number:  # of a window that has closed
                rows.append(row(sent + 5, 60 * number - 59))
            rows[2:2] = ["no JSON", ""]
            put(there / f"{number}-{part}.json{'.gz' if part else ''}", *rows, age=number)
            sent += 5 + bool(number)
        stage.run("readings", abort_at=point, by_spark=number == 2)
        stage.run("per_minute")
    put(there / "last.json", row(sent, 600), age=1000)
    put(there / "end.json", row(sent + 1, 601), age=2000)
    stage.run("readings")
    stage.run("readings", "per_minute")
    assert numbers(stage) == list(range(sent + 2))
    bad = stage.rows("readings", side="quarantine").select(
        "key", "value", "reason", "_arrival.topic"
    )
    shown = {bytes(each.key).decode(): each for each in bad.collect()}
    assert shown.keys() == {f"{n}-{p}.json{'.gz' if p else ''}:3" for n in range(4) for p in (0, 1)}
    assert {(bytes(e.value), e.reason, e.topic) for e in shown.values()} == {
        (b"no JSON", "not a JSON object of the declared types", str(there))
    }
    assert set(stage.crashes) == {("readings", point) for point in COMMIT_POINTS}
    assert_stream_equals_batch(stage, "per_minute")
    once(stage)
