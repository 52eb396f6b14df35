"""Small files are merged beside the commits that add them: the same rows at each version, and none that comes or goes."""

import json
import random
from collections import Counter

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lakehouse.storage.delta import (
    committer,
    delta_log,
    delta_writer,
    log_state,
    small_commits,
    small_files,
    table_creation,
    write_cache,
)

APP = "t:stream:1"
COLUMNS = StructType([StructField("n", LongType()), StructField("_partition", StringType())])


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(small_files, "MANY", 4)
    monkeypatch.setattr(small_files, "LARGE", 60)
    table_creation.create(tmp_path / "t", COLUMNS, True, "n")
    return tmp_path / "t"


def rows(numbers, partitions) -> pa.Table:
    return pa.table({"n": numbers, "_partition": partitions})


def stored(path, version=None) -> Counter:
    read = DeltaTable(str(path), version=version).to_pyarrow_table()
    return Counter(zip(read["_partition"].to_pylist(), read["n"].to_pylist(), strict=True))


def moved(path, version) -> Counter:
    """The rows that a version added, by its log alone."""
    return Counter(
        {
            file["path"]: json.loads(file["stats"])["numRecords"]
            for kind, file in delta_log.moved(path, version)
            if kind == "add"
        }
    )


@pytest.mark.parametrize("seed", range(3))
def test_random_appends_read_the_same_with_fewer_files(table, monkeypatch, seed):
    chance, held, at_version, merges = random.Random(seed), Counter(), {}, 0
    for batch in range(60):
        if chance.random() < 0.2:  # as after a start: the rows are in files alone
            write_cache._kept.clear()
        if chance.random() < 0.1:
            small_files._levels.clear()
        keys = [chance.choice(["a", "b", None]) for _ in range(chance.randrange(1, 6))]
        numbers = [chance.randrange(100) for _ in keys]
        version = delta_writer.append(rows(numbers, keys), table, APP, batch, {})
        held += Counter(zip(keys, numbers, strict=True))
        assert moved(table, version).total() == len(keys)
        for merged in range(version + 1, delta_log.latest(table) + 1):
            merges += 1
            assert delta_log.moved(table, merged) == []
            at_version[merged] = Counter(held)
        at_version[version] = Counter(held)
        if chance.random() < 0.1:  # a batch run takes the place of a partition
            read, gone = delta_log.latest(table), chance.choice(["a", "b"])
            removed = [
                file
                for file in log_state.files_at(table, read)
                if file["partitionValues"]["_partition"] == gone
            ]
            added = small_commits.files_of(rows([batch], [gone]), table)
            version = small_commits.replace(added, removed, table, read, [gone], "{}")
            held = Counter({key: n for key, n in held.items() if key[0] != gone})
            held[gone, batch] += 1
            at_version[version] = Counter(held)
    assert merges >= 10
    assert {version: stored(table, version) for version in at_version} == at_version
    assert len(log_state.newest(table).files) < 60, "of 180, some of which were let go of"
    read_on = committer.head(table)
    committer.forget(table)
    read_anew = committer.head(table)
    for name in ("version", "batches", "metadata", "protocol"):
        assert getattr(read_anew, name) == getattr(read_on, name), name


def test_files_that_another_run_replaced_stay_as_they_are(table, monkeypatch):
    for batch in range(3):
        delta_writer.append(rows([batch], ["a"]), table, APP, batch, {})
    merge = small_files._merge

    def overtaken(path, partition, level):
        [first, *_] = level.files
        small_commits.replace([], [first], path, delta_log.latest(path), ["a"], "{}")
        return merge(path, partition, level)

    monkeypatch.setattr(small_files, "_merge", overtaken)
    version = delta_writer.append(rows([3], ["a"]), table, APP, 3, {})
    assert delta_log.latest(table) == version + 1, "the replacement, and no merge"
    assert stored(table) == Counter([("a", n) for n in (1, 2, 3)])
    assert len(log_state.newest(table).files) == 3


def test_a_file_that_is_gone_fails_no_step(table, caplog):
    write_cache._kept.clear()
    for batch in range(4):
        if batch == 3:
            [file, *_] = log_state.newest(table).files.values()
            delta_log.data_file(table, file).unlink()
            write_cache._kept.clear()
        with caplog.at_level("INFO"):
            delta_writer.append(rows([batch], ["a"]), table, APP, batch, {})
    assert "partition=a: small files stay as they are" in caplog.text
