"""The rows of each partition of a table, as its log lists them, and the data files that are missing on disk.

`_commit_log/<table>.content.json` has the sums, so that nothing is read of a table that stays as it is. It is a cache:
it counts as long as the folders that it was made of have gained and lost no file since.
"""

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote

from lakehouse.declare.columns import ORIGIN, PARTITION
from lakehouse.declare.table import Table
from lakehouse.object_paths import ObjectPath
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_value, replace_file, status

_OF_FILES = ("path", "num_records", f"partition.{PARTITION}", f"min.{ORIGIN}")
# a file that goes while a folder's time stands still, which may be by whole seconds, would not be noticed later
_SETTLED = 5 * 10**9  # nanoseconds


@dataclass(frozen=True, slots=True)
class Stored:
    """The facts of one partition in the Delta log: its rows, and whether a batch run wrote any of them."""

    rows: int = 0
    by_batch: bool = False

    @property
    def origin(self) -> str:
        return "batch" if self.by_batch else "stream"


@dataclass(frozen=True, slots=True)
class Lost:
    """A partition whose files in the table's log are not all on disk: the first missing one, and the rows that they held."""

    partition: str
    file: str
    rows: int


@dataclass(frozen=True, slots=True)
class Content:
    """The partitions of a table ("" without partitions), and which of them lack a data file; version -1 without a table."""

    version: int
    partitions: Mapping[str, Stored]
    lost: tuple[Lost, ...] = ()

    @property
    def rows(self) -> int:
        return sum(stored.rows for stored in self.partitions.values())


@dataclass(frozen=True, slots=True)
class _Summary:
    """A content with all files on disk. `commit`: the last one; `folders`: each by its path in the table, as it was then."""

    commit: str
    folders: Mapping[str, str]
    content: Content


def contents(settings: Settings, tables: Iterable[Table]) -> dict[str, Content]:
    """Returns the content of each of the tables, by its name. Raises OSError as `content`."""
    return {table.name: content(settings, table) for table in tables}


def content(settings: Settings, table: Table) -> Content:
    """Returns the content of the table now. Raises OSError if it cannot be seen whether a file is on disk."""
    path, note = (
        layout.table_path(settings, table),
        layout.note(settings, table, "content.json"),
    )
    # in an object store a folder has no time of its own, so that its files are listed each time
    if isinstance(path, ObjectPath):
        files = delta_log.files(path, None, _OF_FILES)
        return Content(delta_log.latest(path), _partitions(files), _lost(path, files))
    summary = read_value(note, _Summary, "the table's log is read again")
    if summary and _is_current(path, summary):
        return summary.content
    # before what is in them is looked at: what comes or goes meanwhile is found to have done so next time
    folders = _seen(path, [delta_log.folder(path).name])
    version = delta_log.latest(path)
    if version < 0:
        return Content(version, {})
    files = delta_log.files(path, version, _OF_FILES)
    folders |= _seen(path, {unquote(file["path"]).rpartition("/")[0] for file in files})
    read = Content(version, _partitions(files), _lost(path, files))
    changed = max(int(seen.partition(" ")[0]) for seen in folders.values())
    if not read.lost and changed < time.time_ns() - _SETTLED:
        with suppress(OSError):  # of a user who may only read, say
            replace_file(note, asdict(_Summary(delta_log.stamp(path, version), folders, read)))
    return read


def _is_current(path: Path, summary: _Summary) -> bool:
    last = delta_log.stamp(path, summary.content.version)
    return summary.commit == last and summary.folders == _seen(path, summary.folders)


def _seen(path: Path, folders: Iterable[str]) -> dict[str, str]:
    """Returns when each folder changed last, and which one it is: a copy that was put back is another."""
    statuses = {folder: status(f"{path}/{folder}") for folder in folders}
    # not the time at which it was written, which a copy may bring along
    return {
        name: f"{now.st_ctime_ns} {now.st_ino}"
        for name, now in statuses.items()
        if isinstance(now, os.stat_result)
    }


def _partitions(files: Iterable[dict]) -> dict[str, Stored]:
    rows: dict[str, int] = {}
    by_batch = set()
    for file in files:
        key = file.get(f"partition.{PARTITION}", "")
        rows[key] = rows.get(key, 0) + (file["num_records"] or 0)
        if file.get(f"min.{ORIGIN}") == "batch":  # before "stream"
            by_batch.add(key)
    return {key: Stored(many, key in by_batch) for key, many in rows.items()}


def _lost(path: Path, files: Iterable[dict]) -> tuple[Lost, ...]:
    by_partition: dict[str, Lost] = {}
    for file in delta_log.lost(path, files):
        key = file.get(f"partition.{PARTITION}", "")
        before = by_partition.get(key, Lost(key, file["path"], 0))
        by_partition[key] = Lost(key, before.file, before.rows + (file["num_records"] or 0))
    return tuple(by_partition.values())
