"""Exactly-once appends: what a commit records, and what happens to a second writer."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from lakehouse.errors import CommitError
from lakehouse.storage.delta import delta_log, delta_writer
from lakehouse.storage.disk.locks import alone


def test_a_batch_is_recorded_with_its_rows_and_of_two_writers_the_second_fails(spark, tmp_path):
    path = tmp_path / "rows"
    rows = spark.range(3)
    rows.limit(0).write.format("delta").save(str(path))
    assert delta_log.committed(path, "rows:stream:1") == -1
    version = delta_writer.append(rows, path, "rows:stream:1", 7, {"inputs": {}})
    assert (delta_writer.version(path), delta_log.committed(path, "rows:stream:1")) == (
        version,
        7,
    )
    assert (
        delta_writer.append(rows, path, "rows:stream:1", 7, {"inputs": {}}, replayed=True)
        == version
    ), "computed, not written"

    with pytest.raises(CommitError, match="rows:stream:1 has committed batch 8 already"):
        delta_writer.append(rows, path, "rows:stream:1", 8, {"inputs": Meanwhile(rows, path, 8)})
    other = {"inputs": Meanwhile(rows, path, 9)}
    # another writer's batches are its own
    delta_writer.append(rows, path, "rows:stream:2", 0, other)
    assert spark.read.format("delta").load(str(path)).count() == 4 * 3


def test_of_two_processes_one_commits_at_a_time(spark, tmp_path):
    """On a local disk Delta looks for the version, then renames to it: between the two another must not."""
    path = tmp_path / "rows"
    rows = spark.range(3)
    rows.limit(0).write.format("delta").save(str(path))
    with ThreadPoolExecutor() as pool:
        # as another process in the middle of its commit
        with alone(path / "_delta_log" / ".commit.lock"):
            ours = pool.submit(delta_writer.append, rows, path, "rows:stream:1", 0, {})
            with pytest.raises(TimeoutError):
                ours.result(timeout=2)
            rows.write.format("delta").mode("append").save(str(path))
        assert ours.result(timeout=60) == delta_writer.version(path) == 2
    assert spark.read.format("delta").load(str(path)).count() == 2 * 3


class Meanwhile:
    """Written down after the files and before the commit; while that is done another writer commits a batch."""

    def __init__(self, rows: DataFrame, path: Path, batch: int) -> None:
        self.rows, self.path, self.batch = rows, path, batch

    def __str__(self) -> str:
        delta_writer.append(self.rows, self.path, "rows:stream:1", self.batch, {})
        return ""
