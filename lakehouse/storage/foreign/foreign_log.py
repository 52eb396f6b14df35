"""The log of a Delta table of others, version by version: which files each adds, and what it does besides."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from lakehouse.errors import CommitError, SourceError
from lakehouse.storage.delta import delta_log, log_state
from lakehouse.storage.foreign.file_register import Registered
from lakehouse.storage.foreign.foreign_files import away

_ABOUT = ("metaData", "protocol")
TYPE, VERSION = "_change_type", "_commit_version"
"""Columns of a row of a table whose changes are read, by the names of Delta's change feed."""
_OF_WRITER = (TYPE, "__is_cdc")
"""Columns that Delta's writer may leave in files, and that are none of the table's."""
READ, FEED = "read", "feed"
"""Of such a table: files with its first rows, and files whose rows have their own `TYPE`."""
_FEATURES = {  # of readers: those that files and log are read with, or that change neither
    "columnMapping",  # if no mode is set
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "vacuumProtocolCheck",
}


@dataclass(frozen=True, slots=True)
class Version:
    """What a version did to the rows."""

    added: list[Registered]
    removes: str = ""  # the operation, if it takes rows away or changes them, and such is not read
    lost: str = ""  # a file of it that is needed to number its rows, and is gone
    about: Mapping[str, Any] = field(default_factory=dict)  # what it says of the table itself


def latest(path: Path) -> int:
    """The newest version. Raises Away if no table is there."""
    newest = delta_log.latest(path)
    if newest < 0:
        raise away(path)
    return newest


def oldest(path: Path) -> int:
    """The first version of which the log still has the commit."""
    return delta_log.oldest(path)


def files_at(path: Path, version: int, changes: bool = False) -> list[Registered]:
    """The files of a version, in the order in which they were written. Raises SourceError.

    `changes`: whether their rows are the first changes of all.
    """
    try:
        files = log_state.at(path, version).files.values()
    except CommitError as err:
        raise SourceError(
            f"table={path}, version={version}: its log must have this version, and does not ({err})"
        ) from err
    found = [
        _registered(path, file)
        for file in sorted(files, key=lambda f: (f["modificationTime"], f["path"]))
    ]
    if not changes:
        return found
    actions = delta_log.actions(path, version) or []
    return [_changed(each, READ, version, _committed(path, version, actions)) for each in found]


def version(path: Path, number: int, changes: bool = False) -> Version | None:
    """Returns the changes of a version; None if the log does not have it any more."""
    actions = delta_log.actions(path, number)
    if actions is None:
        return None
    if changes:
        return _changes_of(path, number, actions)
    moved = delta_log.moved_of(path, number, actions)
    operation = ""
    if any(kind == "remove" for kind, _ in moved):
        operation = _one(actions, "commitInfo").get("operation", "unknown")
    added = [] if operation else [_registered(path, file) for kind, file in moved if kind == "add"]
    return Version(added, operation, about=_about(actions))


def _changes_of(path: Path, number: int, actions: Sequence[Mapping]) -> Version:
    """By Delta's protocol: its files of changes if it has any, else all rows of the files that it took away and brought."""
    files = [("", action["cdc"]) for action in actions if action.get("cdc")]
    if not files:
        moved = delta_log.moved_of(path, number, actions)
        files = [("delete", file) for kind, file in moved if kind == "remove"]
        files += [("insert", file) for kind, file in moved if kind == "add"]
    at, found = _committed(path, number, actions), []
    for change, file in files:
        try:
            whole = _registered(path, _as_added(path, number, file))
        except (FileNotFoundError, CommitError, KeyError):
            return Version([], lost=file["path"], about=_about(actions))
        found.append(_changed(whole, change or FEED, number, at))
    return Version(found, about=_about(actions))


def _as_added(path: Path, number: int, file: dict) -> dict:
    """A file with the values of its partition: a writer that removes one need not repeat them."""
    if file.get("partitionValues") is not None:
        return file
    return log_state.at(path, number - 1).files[file["path"]]


def _changed(file: Registered, change: str, version: int, at: int) -> Registered:
    return replace(file, change=change, version=version, modified=at)


def _committed(path: Path, number: int, actions: Iterable[Mapping]) -> int:
    """Returns the time at which a version was committed, in nanoseconds since 1970."""
    info = _one(actions, "commitInfo")
    at = info.get("inCommitTimestamp") or info.get("timestamp")
    return at * 1_000_000 if at else delta_log.commit_file(path, number).stat().st_mtime_ns


def _about(actions: Iterable[Mapping]) -> dict[str, Any]:
    return {kind: _one(actions, kind) for kind in _ABOUT}


def about(path: Path) -> dict[str, dict[str, Any]]:
    """The newest metadata and protocol of the table. Raises SourceError if its log, from a checkpoint on, does not have them."""
    try:
        state = log_state.newest(path, of_files=False)
    except CommitError as err:
        raise SourceError(
            f"table={path}, oldest version={oldest(path)}: its log must name the columns, in a commit or in a checkpoint of one "
            f"file, and does not ({err}); have its owner write such a checkpoint, or a copy, and read the copy"
        ) from err
    return {"metaData": state.metadata, "protocol": state.protocol}


def check_readable(path: Path, known: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises SourceError for a table whose log or files are not as they are read here."""
    features = known["protocol"].get("readerFeatures") or ()
    if unknown := sorted(set(features) - _FEATURES):
        raise SourceError(
            f"table={path}, readerFeatures={', '.join(unknown)}: a table is read by what its log says, and this is not "
            "known here; have its owner write a copy without that, and read the copy"
        )
    configuration = dict(known["metaData"].get("configuration") or {})
    mode = configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise SourceError(
            f"table={path}, delta.columnMapping.mode={mode}: its files have other names of columns than the table, and such a "
            "table is not read; have its owner write a copy without that, and read the copy"
        )


def check_columns(path: Path, metadata: Mapping[str, Any], declared: Mapping[str, str]) -> None:
    """Raises SourceError unless the table has these columns, with types of these names: what may be null is judged row by row."""
    columns = StructType.fromJson(json.loads(metadata["schemaString"]))
    there = {each.name: each.dataType.simpleString() for each in columns}
    for name, wanted in declared.items():
        if there.get(name) != wanted:
            found = there.get(name, f"not there, but {', '.join(there)}")
            raise SourceError(
                f"table={path}, column={name}: the schema has it as {wanted}, and in the Delta table it is {found}; "
                "declare the columns as they are there; of a topic's history, which has the topic's columns, have a copy "
                "written with these types, and read the copy"
            )


def partition_types(path: Path) -> pa.Schema:
    """The columns by which the table is partitioned, which its files do not have."""
    metadata = about(path)["metaData"]
    columns = StructType.fromJson(json.loads(metadata["schemaString"]))
    named = metadata.get("partitionColumns") or ()
    return pa.schema(
        [(name, to_arrow_type(columns[name].dataType, timezone="UTC")) for name in named]
    )


def location(table: Path, path: str) -> Path:
    """Returns the place of a file of a Delta table, by its path in the log: in the table's folder, or anywhere."""
    return (
        Path(unquote(urlparse(path).path))
        if "://" in path or path.startswith("file:")
        else table / unquote(path)
    )


def own_columns(file: Registered) -> dict[str, pa.Scalar | None]:
    """Returns what stands in place of a file's columns: a value for each row, or None for one that is no column of the table.

    A row of a table whose changes are read says what it is. Those of a file of changes have that themselves.
    """
    columns: dict[str, pa.Scalar | None] = dict.fromkeys(_OF_WRITER)
    if not file.change:
        return columns
    columns |= {TYPE: pa.scalar(file.change), VERSION: pa.scalar(file.version)}
    if file.change == FEED:
        del columns[TYPE]
    return columns


def _one(actions: Iterable[Mapping], kind: str) -> dict[str, Any]:
    return next((action[kind] for action in actions if action.get(kind)), {})


def _registered(path: Path, file: Mapping) -> Registered:
    vector = file.get("deletionVector")
    count = json.loads(file.get("stats") or "{}").get("numRecords")
    if count is None:  # a writer need not say
        with pq.ParquetFile(location(path, file["path"])) as stored:
            count = stored.metadata.num_rows
    return Registered(
        file["path"],
        file.get("size", 0),
        file.get("modificationTime", 0) * 1_000_000,
        count - (vector["cardinality"] if vector else 0),
        values=file.get("partitionValues") or {},
        vector=vector,
    )
