"""Small files of a partition, merged while the stream goes on: an open hour is read from tens of files, not from thousands.

Files that this process has committed are merged as soon as enough of one size are there. The merged file is
committed beside the stream's steps, as a compaction: to a reader of versions no row comes or goes. What is left of
an hour is compacted once it is over (`maintenance`).
"""

import json
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.declare.columns import PARTITION
from lakehouse.errors import CommitError
from lakehouse.storage.delta import delta_log, small_commits, write_cache
from lakehouse.storage.disk.objects import source

_log = logging.getLogger(__name__)

MANY = 64  # files of one size that become one
LARGE = 20_000  # rows, of which MANY make one file sooner; a file of half of it is merged no more
_LEAST = 4  # files, below which nothing is merged
_OPEN = 4  # partitions of a table that are followed: rows come to the newest ones


@dataclass(slots=True)
class _Level:
    """Files of a partition that were merged equally often, and the version before the first of them."""

    before: int
    files: list[Mapping] = field(default_factory=list)
    rows: int = 0


# of each table: its partitions, the one that was written last at the end, and how often the files of each were merged
_levels: dict[Path, OrderedDict[str | None, dict[int, _Level]]] = defaultdict(OrderedDict)


def committed(path: Path, files: Sequence[Mapping], version: int) -> None:
    """Notes the files that a version of the table added, and merges them with others if these are many by now."""
    for file in files:
        partition = file["partitionValues"].get(PARTITION, "")
        _note(path, partition, 0, file, version)
        while len(_levels[path]) > _OPEN:
            _levels[path].popitem(last=False)


def _note(path: Path, partition: str | None, merged: int, file: Mapping, version: int) -> None:
    rows = json.loads(file.get("stats") or "{}").get("numRecords", LARGE)
    if rows > LARGE // 2:
        return
    levels = _levels[path].setdefault(partition, {})
    _levels[path].move_to_end(partition)
    level = levels.setdefault(merged, _Level(version - 1))
    level.files.append(file)
    level.rows += rows
    if len(level.files) >= MANY or (level.rows >= LARGE and len(level.files) >= _LEAST):
        del levels[merged]
        try:
            [whole], version = _merge(path, partition, level)
        except (CommitError, OSError, KeyError, pa.ArrowException) as err:
            # left to the compaction of the hour
            _log.info(
                f"table={path.name}, partition={partition}: small files stay as they are: {err}"
            )
        else:
            _note(path, partition, merged + 1, whole, version)


def _merge(path: Path, partition: str | None, level: _Level) -> tuple[list[dict], int]:
    parts = [_rows(path, partition, file) for file in level.files]
    rows = pa.concat_tables(parts, promote_options="default")
    whole = small_commits.files_of(rows, path)
    return whole, small_commits.move(path, level.files, whole, level.before)


def _rows(path: Path, partition: str | None, file: Mapping) -> pa.Table:
    place = delta_log.data_file(path, file)
    if (kept := write_cache.rows_of([place])) is not None:
        return kept
    rows = pq.ParquetFile(source(place)).read()
    return (
        rows
        if partition == ""
        else rows.append_column(PARTITION, pa.array([partition] * len(rows), pa.string()))
    )
