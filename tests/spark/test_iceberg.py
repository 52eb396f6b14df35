"""An ingest table that reads an Iceberg table of others: each record once, whatever its owner does meanwhile."""

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, tumbling, window_table
from lakehouse.storage.foreign.file_register import Register
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.reading.registry import check
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from streaming_jobs.command_groups import topic_commands
from support.iceberg_shop import COLUMNS, SCHEMA, START, Shop


def orders(order_rows: DataFrame) -> DataFrame:
    return order_rows


def per_minute(orders: DataFrame) -> DataFrame:
    return orders.groupBy("window").agg(F.count("*").alias("rows"), F.sum("cents").alias("cents"))


def stage_of(spark, root: Path, source, **settings) -> Stage:
    module = ModuleType(__name__)
    module.order_rows = source
    module.orders = ingest_table(layer="bronze", event_time="at", delay="5 seconds")(orders)
    module.per_minute = window_table(layer="gold", window=tumbling("1 minute"))(per_minute)
    return Stage(spark, root, module, **settings)


def once(stage: Stage) -> None:
    (found,) = check(stage.session, stage.session.catalog.table("orders"))
    assert (found.missing, found.doubled, found.examples) == (0, 0, ""), found


@pytest.mark.slow
@pytest.mark.parallel
def test_a_stream_that_crashes_at_each_commit_point_has_the_rows_of_the_tables_own_scan(
    spark, tmp_path
):
    """Columns are renamed, added and widened on the way, files compacted, snapshots expired."""
    columns = Schema(*COLUMNS.fields, NestedField(4, "amount", IntegerType()))
    columns = Schema(*columns.fields, NestedField(5, "day", DateType()))
    shop = Shop(
        tmp_path, columns, PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "day"))
    )
    source = shop.source(f"{SCHEMA}, amount INT, day DATE")
    stage = stage_of(spark, tmp_path / "root", source, max_offsets_per_trigger=9)
    amount, sent, ingest = "amount", 0, stage.session.catalog.table("orders")
    for number, point in enumerate(COMMIT_POINTS):
        for part in range(2):
            ns = [60 * number + 9 * i + part for i in range(5)]
            late = [60 * number - 119] if number > 1 else []  # of a window that has closed
            day = date(2026, 1, 1 + part)
            shop.append(*ns, *late, **{amount: number, "day": day})
            sent += 5 + len(late)
        nothing = pa.Table.from_pylist([{"at": START}], schema=shop.table.schema().as_arrow())
        shop.table.append(nothing)  # its number is required
        if number == 3:  # of two steps: the first moves the watermark, the second carries it
            shop.append(*range(600, 610))
            sent += 10
        stage.run("orders", abort_at=point)
        shop.compact()
        if number == 1:
            with shop.table.update_schema() as update:
                update.rename_column("amount", "number_of_pieces")
                update.add_column("extra", StringType())
            amount = "number_of_pieces"
        if number == 2:
            with shop.table.update_schema() as update:
                update.update_column(amount, LongType())
        known = [each.snapshot_id for each in shop.table.snapshots()]
        through = Register(stage.session.settings, ingest).through
        shop.expire(*known[: known.index(through)])  # what is read
        if number == 1:
            stage.run("per_minute")
    stage.run("orders")
    stage.run("per_minute")
    assert set(stage.crashes) == {("orders", point) for point in COMMIT_POINTS}
    scanned = shop.table.scan(row_filter="n IS NOT NULL").to_arrow().select(["n", amount, "day"])
    rows = stage.rows("orders").select("n", "amount", "day").collect()
    assert sorted(map(str, map(tuple, rows))) == sorted(
        str(tuple(row.values())) for row in scanned.to_pylist()
    )
    assert len(rows) == sent
    reasons = [row.reason for row in stage.rows("orders", side="quarantine").collect()]
    assert reasons == ["missing field: n"] * 4
    assert_stream_equals_batch(stage, "per_minute")
    windows = stage.session.commit_log(stage.session.catalog.table("per_minute")).by_stream()
    assert sum(commit.late for commit in windows) > 0, "late rows came"
    once(stage)


@pytest.mark.slow
@pytest.mark.parallel
def test_each_type_comes_as_it_was_written(spark, tmp_path):
    columns = Schema(
        NestedField(1, "n", LongType()),
        NestedField(2, "at", TimestamptzType()),
        NestedField(3, "local", TimestampType()),
        NestedField(4, "cents", DecimalType(38, 10)),
        NestedField(5, "share", FloatType()),
        NestedField(6, "exact", DoubleType()),
        NestedField(7, "tags", ListType(8, LongType(), element_required=False)),
        NestedField(
            9,
            "who",
            StructType(NestedField(10, "name", StringType()), NestedField(11, "born", DateType())),
        ),
        NestedField(12, "counts", MapType(13, StringType(), 14, LongType(), value_required=False)),
        NestedField(15, "id", UUIDType()),
        NestedField(16, "raw", BinaryType()),
    )
    shop = Shop(tmp_path, columns)
    row = {
        "n": 2**62,
        "at": START.replace(microsecond=123_456),
        "local": datetime(2026, 3, 29, 2, 30, 0, 5),
        "cents": Decimal("1234567890123456789012345678.0123456789"),
        "share": 0.1,
        "exact": 0.1,
        "tags": [1, None],
        "who": {"name": "Ann", "born": date(1815, 12, 10)},
        "counts": [("x", 1)],
        "id": bytes(range(16)),
        "raw": b"\xff\x00",
    }
    nothing = {"n": 0, "at": START}
    shop.table.append(pa.Table.from_pylist([row, nothing], schema=shop.table.schema().as_arrow()))
    schema = (
        "n BIGINT NOT NULL, at TIMESTAMP NOT NULL, local TIMESTAMP_NTZ, cents DECIMAL(38,10), share FLOAT, exact DOUBLE, "
        "tags ARRAY<BIGINT>, who STRUCT<name: STRING, born: DATE>, counts MAP<STRING, BIGINT>, id STRING, raw BINARY"
    )
    stage = stage_of(spark, tmp_path / "root", shop.source(schema))
    stage.run("orders")
    there = stage.rows("orders").orderBy("n").drop("at", "_arrival", "_partition", "_origin")
    empty, full = (each.asDict(recursive=True) for each in there.collect())
    assert set(empty.values()) == {0, None}
    assert full.pop("share") == pytest.approx(0.1)
    assert full == {
        **{name: value for name, value in row.items() if name not in ("at", "share")},
        "counts": {"x": 1},
        "id": "00010203-0405-0607-0809-0a0b0c0d0e0f",
    }
    micros = F.unix_micros("at").alias("at")
    found = stage.rows("orders").where("n > 0").select(micros).first().at
    assert found == int(START.timestamp()) * 1_000_000 + 123_456


@pytest.mark.slow
@pytest.mark.parallel
def test_deleted_rows_stop_the_stream_and_are_passed_over_when_that_is_accepted(spark, tmp_path):
    shop = Shop(tmp_path)
    shop.append(*range(6))
    shop.delete_by_position(shop.data_files()[0].file_path, [1, 4])
    stage = stage_of(spark, tmp_path / "root", shop.source(), max_offsets_per_trigger=3)
    stage.run("orders", abort_at="rows")
    shop.append(6)
    shop.table.delete("n = 0")
    removed = shop.last()
    shop.append(7)
    with pytest.raises(StepFailed, match=f"snapshot={removed}, operation=overwrite: it removes"):
        stage.run("orders")
    assert sorted(row.n for row in stage.rows("orders").collect()) == [0, 2, 3, 5, 6]
    session, ingest = stage.session, stage.session.catalog.table("orders")
    last = next(session.commit_log(ingest).by_stream())
    assert last.inputs == {"shop.orders": {"0": 5}}, "what was appended before it is read"
    topic_commands._accept_files(session, ingest, last, yes=True)
    stage.run("orders")
    assert sorted(row.n for row in stage.rows("orders").collect()) == [0, 2, 3, 5, 6, 7]
    once(stage)
