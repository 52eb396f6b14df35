"""Columns of a user's that are named as the library's own: told apart, or refused where they are declared."""

import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    duplicates,
    files,
    ingest_table,
    kafka,
    keyed_table,
    row_table,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.declare.columns import helper
from lakehouse.errors import DeclarationError
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.storage.delta.digest import differences, digest
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform.versions import as_of_join

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
# what the library has called columns, aliases and fields of its own, and its functions' parameters
OWN = (
    "a", "actual", "a0", "arrived", "b", "before", "batch", "complete", "count", "expected", "first", "good", "bad", "hour",
    "key", "late", "late_from", "late_to", "n", "offset", "origin", "ours", "partition", "position", "problem", "reason", "row",
    "rows", "sum", "theirs", "time", "timestamp", "topic", "value", "watermark",
)  # fmt: skip
UNDERSCORED = tuple(f"_{name}" for name in (*OWN, "arrival", "corrupt", "group", "order", "then"))

row_topic = kafka(
    "rows",
    schema=", ".join(f"{name} STRING" for name in (*OWN, *UNDERSCORED)) + ", at TIMESTAMP NOT NULL",
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def kept(row_topic: DataFrame) -> DataFrame:
    return row_topic.withColumnsRenamed({name: f"x{name}" for name in UNDERSCORED})


@row_table(
    layer="silver",
    keys=["ours", "expected"],
    deduplicate=duplicates("row", "key", within="1 minute"),
)
def passed(kept: DataFrame) -> DataFrame:
    return kept


@window_table(layer="gold", window=tumbling("1 minute"), keys=["row", "actual"], late="update")
def counted(kept: DataFrame) -> DataFrame:
    return kept.groupBy("window", "row", "actual").agg(
        F.count("*").alias("ours"), F.max("key").alias("expected")
    )


@keyed_table(layer="gold", keys=["row", "ours"])
def state(kept: DataFrame) -> DataFrame:
    return kept.groupBy("row", "ours").agg(
        F.count("*").alias("expected"), F.max("value").alias("actual")
    )


@versioned_table(layer="gold", keys=["row"])
def history(kept: DataFrame) -> DataFrame:
    return kept


@row_table(layer="gold")
def then(kept: DataFrame, history: DataFrame) -> DataFrame:
    known = kept.withColumns({"_of_row": F.lit(1), "_of_valid_from": F.lit(2)})
    return as_of_join(known, history, on="row", at="at", take={"known": "ours"}).drop(
        "_of_row", "_of_valid_from"
    )


TABLES = ["passed", "counted", "state", "history", "then"]


def sent(seconds: float, **values: str) -> dict:
    named = {name: f"{name} of {seconds}" for name in (*OWN, *UNDERSCORED)}
    return named | {"row": "r"} | values | {"at": (START + timedelta(seconds=seconds)).isoformat()}


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_may_have_a_column_of_each_of_the_names(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("kept", [sent(1), sent(2), sent(70, row="s"), b"no row"])
    for hours in (1, 2):
        stage.advance("kept", sent(3600 * hours))
    stage.feed("kept", [sent(5)])  # late
    stage.run(*TABLES)
    stage.update("counted")
    for name in TABLES:
        assert_stream_equals_batch(stage, name)
    [first] = stage.rows("kept").where("time = 'time of 1'").collect()
    assert (first["x_corrupt"], first["x_key"], first["key"]) == (
        "_corrupt of 1",
        "_key of 1",
        "key of 1",
    )
    changes = {"passed": ("row = 'changed'", "row = 's'"), "counted": ("expected = 'changed'", "row = 's'"),
               "state": ("actual = 'changed'", "row = 's'"), "history": ("ours = 'changed'", "row = 's'")}  # fmt: skip
    for name, (change, which) in changes.items():
        column, value = change.split(" = ")
        DeltaTable(str(stage.session.path(stage.session.catalog.table(name)))).update(
            {column: value}, predicate=which
        )
    stage.feed("kept", [sent(7201, row="t")])
    stage.run("state", "history")  # these are compared as of their last commit
    for name in changes:
        found = reconciliation.reconcile(stage.session, stage.session.catalog.table(name))
        assert (found.verdict, found.missing + found.extra + 2 * found.changed) == (
            "DIFFERENT",
            2,
        ), name
        assert "changed" in found.examples[0]
    hour = Range(START, START + timedelta(hours=1))
    for name in ("passed", "counted"):
        stage.backfill(name, hour)
        assert_stream_equals_batch(stage, name)


def test_rows_are_compared_whatever_their_columns_are_called(spark):
    names = OWN
    rows = spark.createDataFrame([("p", *names)], ["_partition", *names])
    others = rows.withColumn("ours", F.lit("other"))
    for keys in ([], ["row"], ["expected", "actual"], ["ours"]):
        assert differences(rows, others, keys, "_partition")["p"].total in (1, 2)
        assert differences(rows, rows, keys, "_partition") == {}


def test_maps_are_compared_whatever_the_order_of_their_entries(spark):
    def rows(one: str, other: str):
        return spark.sql(
            f"SELECT 'p' AS _partition, 1 AS k, {one} AS tags, array(struct({one} AS inner)) AS nested "
            f"UNION ALL SELECT 'p', 2, {other}, NULL"
        )

    stored = rows("map('a', 1, 'b', 2)", "map('c', 3)")
    turned = rows("map('b', 2, 'a', 1)", "map('c', 3)")
    assert digest(stored) == digest(turned)
    assert differences(stored, turned, ["k"], "_partition") == {}
    changed = rows("map('a', 1, 'b', 2)", "map('c', 4)")
    assert digest(stored) != digest(changed)
    found = differences(stored, changed, ["k"], "_partition")["p"]
    assert (found.changed, found.total) == (1, 1)
    assert (
        "k=2: batch nested=None, tags={c: 3}, table nested=None, tags={c: 4}" in found.examples[0]
    )


def declared(spark, tmp_path, topic, function, declare=row_table, **options) -> Stage:
    module = ModuleType("named_here")
    module.topic = topic

    def record(topic):
        return topic

    record.__module__ = function.__module__ = module.__name__
    module.record = ingest_table(layer="bronze", event_time="at")(record)
    module.made = declare(layer="silver", **options)(function)
    return Stage(spark, tmp_path, module)


def test_names_that_the_library_needs_are_refused_with_a_remedy(spark, tmp_path):
    with pytest.raises(
        DeclarationError,
        match=f"column={helper('row')}: this prefix is for columns that the library adds",
    ):
        kafka("rows", schema=f"{helper('row')} STRING, at TIMESTAMP")
    with pytest.raises(DeclarationError, match="this prefix is for columns"):
        files("x.csv", schema=f"`{helper('row').upper()}` STRING")

    def made(record):
        return record.groupBy("window").count()

    with pytest.raises(
        DeclarationError,
        match="column=window: the library gives the input of a window table a column",
    ):
        windowed = kafka("t", schema="`window` STRING, at TIMESTAMP")
        declared(
            spark,
            tmp_path / "window",
            windowed,
            made,
            declare=window_table,
            window=tumbling("1 minute"),
        )

    def made(record):
        return record

    valid = kafka("t", schema="valid_from STRING, at TIMESTAMP")
    with pytest.raises(
        DeclarationError,
        match="valid_from is added by the library; leave it to it, or rename yours",
    ):
        declared(
            spark, tmp_path / "valid", valid, made, declare=versioned_table, keys=["valid_from"]
        )
    with pytest.raises(
        DeclarationError, match="columns=sent: the library adds columns of these names to its rows"
    ):
        declared(
            spark,
            tmp_path / "sent",
            kafka("t", schema="k STRING, sent STRING, at TIMESTAMP", key="k"),
            made,
        )
    with pytest.raises(DeclarationError, match="columns=_record: the library adds"):
        declared(
            spark, tmp_path / "record", kafka("t", schema="_record STRING, at TIMESTAMP"), made
        )
    with pytest.raises(DeclarationError, match="a leading '_' marks technical columns; rename _id"):
        declared(spark, tmp_path / "id", kafka("t", schema="_id STRING, at TIMESTAMP"), made)
