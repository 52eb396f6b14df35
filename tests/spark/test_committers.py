"""Several processes commit to one table without a lock: each commit is there once, and none is lost."""

import json
import subprocess
import sys

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lakehouse.storage.delta import delta_log, table_creation

SLOW = [pytest.mark.slow, pytest.mark.parallel]
WRITER = """
import sys
from pathlib import Path
import pyarrow as pa
from lakehouse.storage.delta import small_commits
path, app, commits = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for batch in range(commits):
    rows = pa.table({"n": [batch], "_partition": [app]})
    files, metadata = small_commits.files_of(rows, path), '{"app": "%s", "batch": %d}' % (app, batch)
    print(small_commits.commit(files, path, app, batch, metadata))
"""


@pytest.mark.parametrize("commits", [30, pytest.param(334, marks=SLOW, id="a thousand")])
def test_commits_of_three_processes_are_each_a_version(tmp_path, commits):
    columns = [StructField("n", LongType()), StructField("_partition", StringType())]
    table_creation.create(tmp_path / "t", StructType(columns), True, "n")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "t"), app, str(commits)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for app in ("a", "b", "c")
    ]
    versions = [int(line) for each in writers for line in each.communicate(timeout=240)[0].split()]
    assert sorted(versions) == list(range(1, 3 * commits + 1))
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    found = sorted(zip(rows["_partition"].to_pylist(), rows["n"].to_pylist(), strict=True))
    assert found == [(app, batch) for app in ("a", "b", "c") for batch in range(commits)]
    for version, app in zip(versions, ["a"] * commits + ["b"] * commits, strict=False):
        info = delta_log.commit_info(tmp_path / "t", version)
        assert info and json.loads(info["userMetadata"])["app"] == app
