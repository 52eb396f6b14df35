"""Bytes that commits and checkpoints write to a table's log, and CPU of a commit, behind so many files; no Spark runs.

    python -m benchmarks.log_bytes [--files 20000] [--commits 10000]

Each commit adds a file, which is only named: no data is written. Every 64 of them are replaced by one.
"""

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from pyspark.sql.types import StructType

from lakehouse.cli.console import print_rows
from lakehouse.storage.delta import committer, delta_log, table_creation

_SCHEMA = StructType().add("id", "long").add("_partition", "string")
_NOTED = json.dumps({"app": "t:stream:1", "records": ["as long as that of a step " * 20]})


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.log_bytes", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--files", type=int, default=20_000, help="that the table has")
    parser.add_argument("--commits", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakehouse-bench-") as work:
        path = Path(work) / "rows"
        # what an hour of one-second commits removes is forgotten after as many commits as in 10 minutes
        properties = table_creation.PLAIN | {
            "delta.deletedFileRetentionDuration": "interval 2 seconds"
        }
        table_creation.create(path, _SCHEMA, True, "id", properties)
        _commit(path, [{"add": _file(n, f"{n:08}")} for n in range(given.files)])
        first, before = delta_log.latest(path), time.process_time()
        _fill(path, given.commits)
        cpu = time.process_time() - before
        commits = _bytes(delta_log.commit_file(path, v) for v in delta_log.versions(path)[first:])
        made = [version for version in delta_log.checkpoints(path) if version > first]
        checkpoints = _bytes(delta_log.checkpoint_file(path, version) for version in made)
    row = f"{commits:.1f}", f"{checkpoints:.1f}", len(made), f"{1e3 * cpu / given.commits:.2f}"
    title = f"{given.files:,} files, {given.commits:,} commits"
    print_rows(("commits, MB", "checkpoints, MB", "checkpoints", "CPU ms a commit"), [row], title)
    return 0


def _fill(path: Path, commits: int) -> None:
    small: list[dict] = []
    for n in range(commits):
        small.append(_file(n, "open"))
        _commit(path, [{"add": small[-1]}])
        if len(small) == 64:
            _commit(path, [*map(committer.removal, small), {"add": _file(n, "merged")}])
            small = []


def _commit(path: Path, actions: list[dict]) -> None:
    committer.commit(partial(committer.head, path), lambda _: actions, _NOTED)


def _file(n: int, partition: str) -> dict:
    stats = {
        "numRecords": 1,
        "minValues": {"id": n},
        "maxValues": {"id": n},
        "nullCount": {"id": 0},
    }
    return {
        "path": f"_partition={partition}/{committer.new_name()}",
        "partitionValues": {"_partition": partition},
        "size": 4_000,
        "modificationTime": committer.now(),
        "dataChange": True,
        "stats": json.dumps(stats),
    }


def _bytes(files) -> float:
    """Returns the bytes of the files in MB."""
    return sum(file.stat().st_size for file in files) / 1e6


if __name__ == "__main__":
    sys.exit(main())
