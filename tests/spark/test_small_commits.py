"""Commits without a Spark job: what Spark and deltalake read of them is what Spark itself would have written."""

import json
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import CommitError
from lakehouse.ranges import Range
from lakehouse.settings import Settings
from lakehouse.storage.delta import (
    delta_log,
    delta_writer,
    small_commits,
    table_creation,
    write_cache,
)
from lakehouse.storage.delta.arrow import in_spark
from lakehouse.storage.session import Session
from support.wide_rows import AT, WIDE, values

APP = "rows:stream:1"
FIRST = 1  # the first version that has rows


@pytest.fixture
def rows(spark):
    none = (None,) * 17 + ("stream", None)
    return spark.createDataFrame(
        [values(1), values(2), values(3, "2026-03-29-02"), none], WIDE
    ).coalesce(1)


@pytest.fixture
def tables(rows, tmp_path):
    """A table that Spark writes and one that is written without it, alike."""
    paths = [tmp_path / "spark", tmp_path / "ours"]
    for path in paths:
        table_creation.create(path, rows.schema, True, "w,at,_origin")
    delta_writer.append(rows, paths[0], APP, 0, {"inputs": {}})
    delta_writer.append(rows.toArrow(), paths[1], APP, 0, {"inputs": {}})
    return paths


def test_spark_and_deltalake_read_the_same_rows(spark, tables):
    assert small_commits.can_hold(spark.read.format("delta").load(str(tables[0])).toArrow().schema)
    theirs, ours = (spark.read.format("delta").load(str(path)) for path in tables)
    assert theirs.schema == ours.schema
    assert (
        sorted(map(str, theirs.collect())) == sorted(map(str, ours.collect())) and ours.count() == 4
    )
    one, other = (
        DeltaTable(str(path)).to_pyarrow_table().sort_by([("n", "ascending")]) for path in tables
    )
    assert one.equals(other)


def test_rows_behind_an_empty_piece_come_to_spark_too(spark):
    pieces = pa.concat_tables([pa.table({"n": [1, 2]}), pa.table({"n": [3]})])
    found = pieces.filter(pc.field("n") > 2)
    assert [len(piece) for piece in found["n"].chunks] == [0, 1], "pyarrow makes no such pieces"
    assert [row["n"] for row in in_spark(spark, found).collect()] == [3]


def test_rows_in_memory_are_those_of_their_files(spark, tables, tmp_path, monkeypatch):
    path, schema = tables[1], delta_log.schema_of(delta_log.open_table(tables[1]))
    files = [path / unquote(file["path"]) for file in delta_log.files(path)]
    session = Session(Settings(root=tmp_path), catalog_of([]), spark)
    monkeypatch.setattr(Session, "path", lambda session, table: path)
    from_memory = session.rows_of(None, files, schema)
    from_files = spark.read.schema(schema).option("basePath", str(path)).parquet(*map(str, files))
    assert from_memory.schema == from_files.schema
    assert (
        sorted(map(str, from_memory.collect())) == sorted(map(str, from_files.collect()))
        and from_files.count() == 4
    )
    assert write_cache.rows_of([*files, path / "of another process"]) is None
    never_null = pa.schema(
        [field.with_nullable(False) for field in write_cache.rows_of(files[:1]).schema]
    )
    write_cache.keep(
        path / "of another plan",
        write_cache.rows_of(files[:1]).slice(0, 1).cast(never_null, safe=False),
    )
    together = write_cache.rows_of([*files, path / "of another plan"])
    assert together.num_rows == 5, (
        "one plan knows of a column that it is never null, another does not"
    )
    monkeypatch.setattr(write_cache, "_BYTES", 0)
    write_cache.keep(path / "one more", rows=write_cache.rows_of(files[:1]))
    assert write_cache.rows_of(files[:1]) is None, "the oldest go first"


def test_statistics_choose_the_same_files(tables):
    found = [
        sorted(
            ({k: v for k, v in file.items() if k.startswith(("min.", "max.", "null_count.", "num_", "partition."))}
             for file in delta_log.files(path)), key=str,
        )
        for path in tables
    ]  # fmt: skip
    assert found[0] == found[1] and found[0][0]["min.at"]
    logs = [
        json.loads(line)
        for line in (tables[1] / "_delta_log" / f"{FIRST:020}.json").read_text().splitlines()
    ]
    spans = [
        delta_log.may_hold(file, "at", Range(AT, AT.replace(second=1)))
        for file in delta_log.files(tables[1])
    ]
    assert any(spans) and any("txn" in action for action in logs)


def test_the_batch_is_noted_with_the_rows_and_never_committed_twice(spark, tables, rows):
    path = tables[1]
    assert delta_log.committed(path, APP) == 0 and delta_writer.version_of(path, APP, 0) == FIRST
    empty = rows.toArrow().slice(0, 0)
    assert delta_writer.append(empty, path, APP, 1, {"inputs": {"a": 1}}) == FIRST + 1
    assert delta_writer.noted(path, APP, 1) == {"app": APP, "batch": 1, "inputs": {"a": 1}}
    with pytest.raises(CommitError, match="batch=1: rows:stream:1 has committed batch 1 already"):
        delta_writer.append(rows.toArrow(), path, APP, 1, {})
    assert delta_writer.append(rows, path, APP, 2, {}) == FIRST + 2, "Spark goes on behind it"
    assert delta_writer.append(rows.toArrow(), path, APP, 3, {}) == FIRST + 3, "and it behind Spark"
    assert spark.read.format("delta").load(str(path)).count() == 4 * 3


def test_a_table_that_was_removed_and_made_recreated_is_another_one(tables, rows, tmp_path):
    import shutil

    path = tables[1]
    for batch in (1, 2):
        delta_writer.append(rows.toArrow(), path, APP, batch, {})
    shutil.rmtree(path)
    table_creation.create(path, rows.schema, True, "w,at,_origin")
    assert delta_writer.append(rows.toArrow(), path, APP, 0, {}) == FIRST
    assert DeltaTable(str(path)).to_pyarrow_dataset().count_rows() == 4


def test_columns_that_only_spark_writes_are_left_to_it(spark):
    odd = spark.sql("SELECT INTERVAL '1' DAY AS span, 1 AS n")
    assert not small_commits.can_hold(odd.toArrow().schema)
