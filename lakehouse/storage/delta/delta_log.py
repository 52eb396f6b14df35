"""What a Delta table's log says, commit by commit: which files it has, and what changed it since a version.

No data file is read.
"""

import json
import os
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lakehouse.declare.columns import PARTITION
from lakehouse.object_paths import ObjectPath
from lakehouse.paths import relative, within
from lakehouse.ranges import BEGINNING, OPEN_END, Range
from lakehouse.storage.delta import recent_commits

if TYPE_CHECKING:
    from arro3.core import RecordBatch, Table
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

_EVER = Range(BEGINNING, OPEN_END)
ENGINE = "lakehouse"  # what commits of ours name as their engine
# versions: so many times other engines try a commit again, whose answer was lost
_TRIES = 16
# Delta cuts the greatest timestamp of a file to milliseconds
_CUT = timedelta(milliseconds=1, microseconds=1)


@dataclass(frozen=True, slots=True)
class Change:
    """One commit that added or removed rows; compaction and commits without files are none."""

    version: int
    at: datetime
    operation: str  # as Delta names it: WRITE, DELETE, UPDATE, ...
    # by the mark that every writer of ours leaves (`delta_writer`); empty: somebody else's
    app: str
    batch: int
    partitions: frozenset[str]  # in which rows came or went
    # of an ingest table: the event time of what came or went, by the files' statistics
    spans: tuple[Range, ...]
    removes: bool
    again: bool  # its batch had been written before

    @property
    def ours(self) -> bool:
        """Returns True if a run of ours was to make this write."""
        return bool(self.app) and not self.again

    @property
    def by_stream(self) -> bool:
        return ":stream:" in self.app

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation} at {self.at:%Y-%m-%dT%H:%M:%SZ})"


def folder(path: Path) -> Path:
    """Returns the folder of the table's log."""
    return path / "_delta_log"


def commit_file(path: Path, version: int) -> Path:
    return folder(path) / f"{version:020}.json"


def exists(path: Path) -> bool:
    """Returns True if a table is there: a log with a commit in it."""
    log = folder(path)
    try:
        if isinstance(log, ObjectPath):
            return log.is_dir()
        # not by the whole list: of a long log it takes twenty times as long, and each command asks often
        with os.scandir(log) as entries:
            return any(entry.name[20:] == ".json" for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False


def open_table(path: Path, version: int | None = None) -> "DeltaTable":
    """The table that is there as deltalake has it, now or at a version."""
    from deltalake import DeltaTable

    return DeltaTable(str(path), version=version)


def versions(path: Path) -> list[int]:
    """The versions whose commits the log still has, in order."""
    return sorted(int(name[:20]) for name in _commits(path))


def latest(path: Path) -> int:
    """The last version of the table, -1 if there is none."""
    return int(max(_commits(path), default="-1")[:20])


def is_last(path: Path, version: int) -> bool:
    """Returns True if the log has that version, and not the next one."""
    return bool(stamp(path, version)) and not stamp(path, version + 1)


def oldest(path: Path) -> int:
    """The first version that the log still has."""
    return int(min(_commits(path), default="0")[:20])


def checkpoints(path: Path) -> list[int]:
    """The versions of which the log has a checkpoint (Delta's)."""
    return sorted(int(file.name[:20]) for file in folder(path).glob("*.checkpoint.parquet"))


def checkpoint_file(path: Path, version: int) -> Path:
    return folder(path) / f"{version:020}.checkpoint.parquet"


def actions(path: Path, version: int) -> list[dict] | None:
    """Returns the actions of a version's commit, in the order of its lines; None if the log does not have it."""
    try:
        # of bytes: in text a line ends at U+2028 and U+0085 as well, which values in a commit may have
        lines = recent_commits.content(commit_file(path, version)).splitlines()
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in lines if line]


def committed(path: Path, app: str) -> int:
    """The last batch that `app` wrote to the table, -1 if none."""
    version = open_table(path).transaction_version(app)
    return -1 if version is None else version


def moved(path: Path, version: int) -> list[tuple[str, dict]] | None:
    """The files that a version added ("add") and removed ("remove") so that rows came or went.

    None if the log does not have the version. Compaction moves none, and a commit that was made twice moves none again.
    """
    of_version = actions(path, version)
    return None if of_version is None else moved_of(path, version, of_version)


def rows_from(path: Path) -> int | None:
    """The first version in the log by which rows came or went; None if there is none."""
    return next((version for version in versions(path) if moved(path, version)), None)


def data_file(path: Path, file: Mapping) -> Path:
    """Returns the path of a file that the log names."""
    return within(path, unquote(file["path"]))


def commit_info(path: Path, version: int) -> dict | None:
    """Returns the `commitInfo` of a version; None if the log does not have it. The rest of the commit is not read."""
    try:
        with recent_commits.opened(commit_file(path, version)) as log:
            infos = (json.loads(line).get("commitInfo") for line in log)
            return next(filter(None, infos), {})
    except FileNotFoundError:
        return None


def noted(path: Path, version: int) -> str:
    """Returns what its writer noted with that version; empty if it noted nothing, or the log does not have the version."""
    return (commit_info(path, version) or {}).get("userMetadata") or ""


def changes(path: Path, after: int, column: str = "") -> list[Change] | None:
    """The changes later than version `after`, oldest first.

    None if the log does not have all of these versions any more.

    With `column`, a timestamp, each has the span of it that its files have.
    """
    later = [v for v in versions(path) if v > after]
    if later != list(range(after + 1, after + 1 + len(later))):
        return None
    seen: set[tuple[str, int]] = set()
    read = (_change(path, v, column, seen) for v in later)
    return [change for change in read if change]


def change(path: Path, version: int) -> Change | None:
    """The change that a version is; None if it is none, or the log does not have it any more."""
    return _change(path, version, "", set())


def made(path: Path) -> tuple[str, datetime] | None:
    """The table's id, which no other has, and when it was made; None if it is not there."""
    if not exists(path):
        return None
    metadata = open_table(path).metadata()
    return str(metadata.id), datetime.fromtimestamp((metadata.created_time or 0) / 1000, UTC)


def stamp(path: Path, version: int) -> str:
    """The identity of the commit of a version; empty if the log does not have it."""
    try:
        return f"{version} {recent_commits.identity(commit_file(path, version))}"
    except FileNotFoundError:
        return ""


def files(
    path: Path, version: int | None = None, fields: Collection[str] | None = None
) -> list[dict]:
    """Returns the files of the table, now or at a version, with rows, bytes, partition and statistics.

    Keys are those of deltalake: `path`, `num_records`, `size_bytes`, `partition.<column>`, `min.<column>`,
    `max.<column>`. With `fields` only those of them that the table has. Empty if the table is not there.
    """
    if not exists(path):  # removed, to be filled again
        return []
    seen = isinstance(path, ObjectPath) and version is None
    table = recent_commits.present(path, open_table, stamp) if seen else open_table(path, version)
    actions = table.get_add_actions(flatten=True)
    if fields is not None:
        actions = actions.select([name for name in actions.column_names if name in fields])
    return records(actions)


def records(rows: "Table | RecordBatch") -> list[dict[str, Any]]:
    """The rows that deltalake gives, by their columns' names.

    Not by pyarrow, which makes the same of them: it imports numpy, a quarter of the CPU of a command.
    """
    columns = [column.to_pylist() for column in rows.columns]
    return [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def lost(path: Path, found: Iterable[dict]) -> list[dict]:
    """Returns the files, as the log names them, that are not on disk."""
    # by folders: to look at each file takes ten times as long
    listed: dict[str, frozenset[str]] = {}
    gone = []
    for file in found:
        name = relative(path, unquote(file["path"]))
        folder, _, last = name.rpartition("/")
        if folder not in listed:
            listed[folder] = frozenset(_listed(path / folder))
        if last not in listed[folder] and not _is_there(path / name):
            gone.append(file)
    return gone


def _is_there(path: Path) -> bool:
    """Returns True for a file on disk. Raises OSError if that cannot be seen: `os.path.exists` takes such a file for lost."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def missing(files: Iterable[Path]) -> list[Path]:
    """Returns the files that are not on disk."""
    return [file for file in files if not _is_there(file)]


def schema_of(table: "DeltaTable") -> "StructType":
    """Returns the columns of a table that is open, as Spark has them."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))


def may_reach(file: dict, column: str, instant: datetime) -> bool:
    """Returns False if the file's statistics rule out a timestamp of `column` at that instant or later."""
    greatest = file.get(f"max.{column}")
    return greatest is None or greatest + _CUT > instant


def may_hold(file: dict, column: str, span: Range) -> bool:
    """Returns False if the file's statistics rule out a timestamp of `column` in the span."""
    least = file.get(f"min.{column}")
    return may_reach(file, column, span.start) and (least is None or least < span.end)


def written(path: Path, version: int) -> datetime | None:
    """Returns the time at which that version was committed; None if the log does not say any more."""
    at = (commit_info(path, version) or {}).get("timestamp")
    return at and datetime.fromtimestamp(at / 1000, UTC)


def at(path: Path, instant: datetime) -> int | None:
    """The last version that was committed by then; None if none is known to be."""
    for version in reversed(versions(path)):
        if (moment := written(path, version)) and moment <= instant:
            return version
    return None


def last_streamed(path: Path, partitions: Container[str]) -> int:
    """The last version from which a stream reads rows of any of the partitions.

    -1 if none that is kept.
    """
    for version in reversed(versions(path)):
        changes = moved(path, version) or []
        if any(kind == "remove" for kind, _ in changes):
            continue  # a rewrite, over which streams pass
        if any(each["partitionValues"].get(PARTITION) in partitions for _, each in changes):
            return version
    return -1


def _commits(path: Path) -> list[str]:
    """Returns the names of the commits' files. They sort as their versions do."""
    # not by a glob: of a log of thousands of commits it takes ten times as long, and each command asks often
    names = _listed(folder(path))
    return [n for n in names if len(n) == 25 and n.endswith(".json") and n[:20].isdigit()]


def _listed(folder: Path) -> list[str]:
    """Returns the names in the folder; none if it is not there."""
    try:
        return recent_commits.names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def moved_of(path: Path, version: int, of_version: Sequence[Mapping]) -> list[tuple[str, dict]]:
    """Returns what `moved` does, from the actions of the version."""
    files = (
        (kind, action[kind])
        for action in of_version
        for kind in ("add", "remove")
        if kind in action
    )
    moved = [(kind, file) for kind, file in files if file["dataChange"]]
    if any(action.get("commitInfo", {}).get("engineInfo") == ENGINE for action in of_version):
        return moved  # ours reads what has landed, and is made once
    there = _added_before(path, version) if any(kind == "add" for kind, _ in moved) else set()
    there -= {file["path"] for kind, file in moved if kind == "remove"}
    return [(kind, file) for kind, file in moved if kind == "remove" or file["path"] not in there]


def _added_before(path: Path, version: int) -> set[str]:
    """Returns the names of the files that the versions just before added, and that are still there."""
    there: set[str] = set()
    for earlier in range(version - _TRIES, version):
        of_version = actions(path, earlier) or []
        there -= {action["remove"]["path"] for action in of_version if "remove" in action}
        there |= {action["add"]["path"] for action in of_version if "add" in action}
    return there


def _change(path: Path, version: int, column: str, seen: set[tuple[str, int]]) -> Change | None:
    of_version = actions(path, version) or []
    moved = moved_of(path, version, of_version)
    if not moved:
        return None
    info: dict = next((action["commitInfo"] for action in of_version if "commitInfo" in action), {})
    written = _mark(info.get("userMetadata"))
    again = written in seen
    seen.add(written)
    return Change(
        version,
        datetime.fromtimestamp(info.get("timestamp", 0) / 1000, UTC),
        info.get("operation", "unknown"),
        *written,
        frozenset((file.get("partitionValues") or {}).get(PARTITION) or "" for _, file in moved),
        tuple(span_of(file, column) for _, file in moved) if column else (),
        any(kind == "remove" for kind, _ in moved),
        bool(written[0]) and again,
    )


def _mark(metadata: str | None) -> tuple[str, int]:
    """The writer and its batch; empty if it is not a mark of ours."""
    try:
        mark = json.loads(metadata or "{}")
        return str(mark["app"]), int(mark["batch"])
    except (ValueError, KeyError, TypeError):
        return "", -1


def span_of(file: dict, column: str) -> Range:
    """The span of the column that the file has.

    All time, if its statistics do not say (those of a removal need not).
    """
    stats = json.loads(file.get("stats") or "{}")
    ends = [_value(stats.get(name, {}), column) for name in ("minValues", "maxValues")]
    instants = [datetime.fromisoformat(end) for end in ends if end]
    if len(instants) < len(ends):
        return _EVER
    first, last = (end.replace(tzinfo=UTC) if end.tzinfo is None else end for end in instants)
    return Range(first, last + _CUT)


def _value(values: dict, column: str) -> str | None:
    """Returns the value of a column, or of a field of a struct by its path."""
    if column in values or "." not in column:
        return values.get(column)
    struct, _, field = column.partition(".")
    return _value(values.get(struct) or {}, field)
