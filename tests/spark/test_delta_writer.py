"""Exactly-once appends: what a commit records, and what happens to a second writer."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from lakehouse.errors import CommitError
from lakehouse.storage.delta import delta_log, delta_writer, small_commits, table_creation


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
    assert delta_writer.version_of(path, "rows:stream:1", 7) == version

    with pytest.raises(CommitError, match="rows:stream:1 has committed batch 8 already"):
        delta_writer.append(rows, path, "rows:stream:1", 8, {"inputs": Meanwhile(rows, path, 8)})
    other = {"inputs": Meanwhile(rows, path, 9)}
    # another writer's batches are its own
    delta_writer.append(rows, path, "rows:stream:2", 0, other)
    assert spark.read.format("delta").load(str(path)).count() == 4 * 3


def test_files_that_replace_a_partition_have_the_statistics_that_spark_writes(spark, tmp_path):
    rows = spark.range(6).selectExpr(
        "id AS n", "timestamp_millis(id) AS at", "IF(id < 3, 'a', 'b') AS _partition"
    )
    stats = []
    for name in ("ours", "theirs"):
        path = tmp_path / name
        table_creation.create(path, rows.schema, True, "n,at")
        delta_writer.append(rows, path, "rows:stream:1", 0, {})
        b = rows.where("n > 4")
        if name == "ours":
            delta_writer.replace(b, path, ["b"], {"run": "1"})
        else:
            only = "_partition = 'b'"
            b.write.format("delta").mode("overwrite").option("replaceWhere", only).save(str(path))
        files = delta_log.files(path)
        stats.append(
            sorted(
                str(
                    {
                        n: v
                        for n, v in f.items()
                        if n.split(".")[0] in ("min", "max", "null_count", "num_records")
                    }
                )
                for f in files
            )
        )
        stored = spark.read.format("delta").load(str(path))
        assert sorted(row["n"] for row in stored.collect()) == [0, 1, 2, 5]
        assert DeltaTable(str(path)).to_pyarrow_dataset().count_rows() == 4
    assert stats[0] == stats[1]


def test_of_two_overwrites_of_one_partition_the_second_is_refused(spark, tmp_path):
    path = tmp_path / "rows"
    rows = spark.range(4).selectExpr("id AS n", "IF(id < 2, 'a', 'b') AS _partition")
    table_creation.create(path, rows.schema, True, "n")
    delta_writer.append(rows, path, "rows:stream:1", 0, {})

    def beside(partition: str, does: str) -> int:
        """Replaces partition a, while another run does something to a partition."""
        other = rows.where(f"_partition = '{partition}'")
        kept = small_commits.replace

        def late(*given: object) -> int:
            small_commits.replace = kept
            if does == "append":
                delta_writer.append(other, path, f"{partition}{does}", 0, {})
            else:
                delta_writer.replace(other, path, [partition], {"run": "2"})
            return kept(*given)

        small_commits.replace = late
        return delta_writer.replace(rows.where("n = 1"), path, ["a"], {"run": "1"})

    assert beside("b", "append") == 3 and beside("b", "replace") == 5
    for does in ("append", "replace"):
        with pytest.raises(CommitError, match="another run changed what was being replaced"):
            beside("a", does)
    found = spark.read.format("delta").load(str(path)).where("_partition = 'a'").collect()
    assert sorted(row["n"] for row in found) == [0, 1], "each commit that was made, and no other"


class Meanwhile:
    """Written down after the files and before the commit; while that is done another writer commits a batch."""

    def __init__(self, rows: DataFrame, path: Path, batch: int) -> None:
        self.rows, self.path, self.batch = rows, path, batch

    def __str__(self) -> str:
        delta_writer.append(self.rows, self.path, "rows:stream:1", self.batch, {})
        return ""
