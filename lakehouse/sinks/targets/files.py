"""Folders of files as targets: a manifest, replaced in one step, names the files of one version of a table and its position.

    exports/payments/
      _manifest.json            table, version, position, and each file with its rows, bytes and checksum
      _epoch                    whose turn it is to write
      _writer-3/                where that process writes the next manifest
      region=north/v12-3-0.parquet

A version that only adds rows is one more file in each of its partitions. Any other one writes the
partitions concerned again. A file that left the manifest stays for an hour, for readers that have
the manifest before.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from lakehouse.declare.inputs.source_checks import one_of
from lakehouse.declare.targets import (
    Corrections,
    Fault,
    Position,
    Row,
    RowChange,
    Sink,
    Target,
    columns_of,
)
from lakehouse.errors import DeclarationError, SinkError
from lakehouse.settings import Settings
from lakehouse.sinks import base
from lakehouse.sinks.formats.encoding import key_of, text_of, value_of
from lakehouse.sinks.targets.files_folder import MANIFEST, Folder, Format, decoded, encoded
from lakehouse.storage.disk.files import exists

if TYPE_CHECKING:
    import pyarrow as pa

_NULL = "__HIVE_DEFAULT_PARTITION__"
_KEPT = timedelta(hours=1)  # for readers that have an earlier manifest
_MANY = 16  # files of a partition, before they are made one
_OURS = re.compile(r"(?:.*/)?v\d+-\d+-\d+\.(?:parquet|csv|json)")


@dataclass(frozen=True, slots=True)
class FileFolder(Target):
    """A folder of files that holds, for each key, the row of a table."""

    symbol: ClassVar[str] = "file"
    path: str
    format: Format
    partition_by: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"folder {Path(self.path).absolute()}/"

    def sink(self, settings: Settings, table: str) -> "FilesSink":
        return FilesSink(settings, self, table)


def file_folder(
    path: str,
    *,
    key: str | Sequence[str],
    format: Format = "parquet",
    partition_by: str | Sequence[str] = (),
    name: str = "",
    corrections: Corrections = "send",
) -> FileFolder:
    """A folder of files to which a table is published: `publish=[file_folder(...)]`.

        @row_table(layer="silver", publish=[file_folder("/exports/payments", key=["account", "day"], partition_by="day")])
        def payments(payment_events: DataFrame) -> DataFrame: ...

    `_manifest.json` names the files of one version. It is replaced once these are written, so whoever
    reads the files that it names has a whole version.

    :param path: the folder, which belongs to the target alone, outside of the root of the lakehouse.
    :param key: the columns that identify a row.
    :param format: "parquet"; "csv", every value as text, and an empty one without quotation marks is
        null; or "json", an object a line without the columns that are null.
    :param partition_by: columns of the key, by whose values files are in folders. A correction writes the
        folders that it changes again. Default: one folder.
    :param name: names the target in commands. Default: the last part of `path`.
    :param corrections: "send", "hold" or "ignore" what changes rows that were final before.
    :raises DeclarationError: for values that do not fit each other.
    """
    one_of("format", format, ("parquet", "csv", "json"))
    keys = columns_of(key)
    parts = columns_of(partition_by)
    named = name or Path(path).name
    if not named:
        raise DeclarationError(f"path={path!r}: a folder with a name; give one")
    if unknown := [name for name in parts if name not in keys]:
        raise DeclarationError(
            f"target={named}, partition_by={unknown[0]!r}: a row stays in its partition; add {unknown[0]} to key={list(keys)}"
        )
    if parts and len(parts) == len(keys):
        raise DeclarationError(
            f"target={named}, partition_by={list(parts)}: by all of the key each row is a partition of its own; leave one out"
        )
    return FileFolder(named, keys, corrections, path, format, parts)


class FilesSink(Sink):
    """Writes a table to a folder of files."""

    def __init__(self, settings: Settings, target: FileFolder, table: str) -> None:
        self._target, self._table = target, table
        path, root = Path(target.path).absolute(), settings.root.absolute()
        if path.is_relative_to(root) or root.is_relative_to(path):
            raise SinkError(
                f"target={target.name}, path={target.path}: it and the root of the lakehouse must lie apart; name another folder"
            )
        layout = {
            "format": target.format,
            "key": [*target.key],
            "partition_by": [*target.partition_by],
        }
        self._folder = Folder(target.name, path, layout)
        self._epoch = 0
        self._schema: pa.Schema | None = None
        self._manifest: dict[str, Any] | None = None  # the last one, with what was written since
        self._keys: dict[str, set[str]] = {}  # of partitions that were written by this process
        self._written = 0

    def open(self) -> None:
        with self._folder.lock():
            names = self._folder.names()
            ours = {name for name in names if _OURS.fullmatch(name)}
            path = self._folder.path
            if names and not ours and not exists(path / MANIFEST):
                raise SinkError(
                    f"target={self._target.name}, path={path}: it has files ({min(names)}); name an empty folder"
                )
            # the number may be gone, and no name of a file may come again
            self._epoch = max([self._folder.epoch(), *map(_epoch_of, ours)]) + 1
            self._folder.take_over(self._epoch)
            try:
                manifest = self._folder.read()
            except SinkError:  # the position says so
                return
            if manifest:  # what a process wrote that died before its commit
                for name in ours - _names_in(manifest):
                    self._folder.remove(name)
            elif not ours:
                self._publish(_nothing())  # its absence is a loss from now on

    def position(self) -> Position | None:
        self._manifest = manifest = self._folder.read()
        if manifest is not None:
            at = manifest["position"]
            return Position.from_json(json.dumps(at)) if at else None
        if any(map(_OURS.fullmatch, self._folder.names())):
            raise base.unsound(
                self._target.name,
                f"{self._folder.path} has files of a follower, and no {MANIFEST}",
            )
        return None

    def columns(self, schema: "pa.Schema") -> None:
        self._schema = schema
        self._state()["columns"] = {field.name: str(field.type) for field in schema}

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        by_partition: dict[str, list[RowChange]] = {}
        for change in changes:
            partition = _partition(change.row, self._target.partition_by)
            by_partition.setdefault(partition, []).append(change)
        for partition, partition_changes in by_partition.items():
            self._change(partition, version, partition_changes)

    def commit(self, position: Position) -> None:
        now = datetime.now(UTC)
        state = self._state()
        expired = {
            name
            for name, left in state["left"].items()
            if now - datetime.fromisoformat(left) > _KEPT
        }
        manifest = {
            "table": self._table,
            "version": position.version,
            **self._folder.layout,
            "columns": state["columns"],
            "files": state["files"],
            "left": {name: left for name, left in state["left"].items() if name not in expired},
            "position": json.loads(position.to_json()),
        }
        with self._folder.lock():
            self._publish(manifest)
        for name in expired:
            self._folder.remove(name)
        self._manifest = manifest

    def _publish(self, manifest: Mapping[str, Any]) -> None:
        if not self._folder.publish(manifest, self._epoch):
            what = "nothing of what it wrote is in the manifest"
            raise base.replaced(f"target={self._target.name}", what)

    def rows(self, version: int) -> Iterator[tuple[str, str, bool]]:
        for entry in self._state()["files"]:
            content, fault = self._folder.load(entry)
            if not fault:
                for key, row in self._rows_of(content).items():
                    yield key, value_of(row), True

    def faults(self) -> Iterator[tuple[str, Fault]]:
        state = self._state()
        for entry in state["files"]:
            if fault := self._folder.load(entry)[1]:
                yield entry["path"], fault
        for name in sorted(self._folder.names() - _names_in(state)):
            if not _OURS.fullmatch(name):
                yield name, "foreign file"

    def mend(self) -> None:
        try:
            state = self._state()
        except SinkError:
            self._manifest = state = _nothing()
        faults = dict(self.faults())
        for name, fault in faults.items():
            if fault == "foreign file":
                self._folder.set_aside(name)
        state["files"] = [entry for entry in state["files"] if entry["path"] not in faults]

    def _change(self, partition: str, version: int, changes: Sequence[RowChange]) -> None:
        """Adds a file of the new rows, or writes the partition again where others change."""
        state = self._state()
        entries = [entry for entry in state["files"] if entry["partition"] == partition]
        if partition not in self._keys:
            self._keys[partition] = {
                key for entry in entries for key in self._rows_of(self._folder.sound_content(entry))
            }
        keys = self._keys[partition]
        came = {key_of(change.row, self._target.key): change for change in changes}
        appends = all(change.kind == "insert" for change in changes) and not keys & came.keys()
        if appends and len(entries) < _MANY:
            rows = {key: change.row for key, change in came.items()}
        else:
            rows = {}
            for entry in entries:
                rows |= self._rows_of(self._folder.sound_content(entry))
            for key, change in came.items():
                if change.kind == "delete":
                    rows.pop(key, None)
                else:
                    rows[key] = change.row
            now = datetime.now(UTC).isoformat()
            state["left"] |= {entry["path"]: now for entry in entries}
            state["files"] = [entry for entry in state["files"] if entry not in entries]
            keys.clear()
        keys |= rows.keys()
        if rows:
            assert self._schema is not None, "columns come before rows"
            self._written += 1
            name = f"v{version}-{self._epoch}-{self._written}.{self._target.format}"
            content = encoded(self._target.format, list(rows.values()), self._schema)
            entry = self._folder.store(partition, name, content)
            state["files"].append(entry | {"rows": len(rows)})

    def _rows_of(self, content: bytes) -> dict[str, Row]:
        """Returns the rows of a file by key."""
        rows = decoded(self._target.format, content, self._state()["columns"])
        # columns of the key may be left out
        names = self._target.key
        return {key_of({name: row.get(name) for name in names}, names): row for row in rows}

    def _state(self) -> dict[str, Any]:
        if self._manifest is None:
            self._manifest = self._folder.read() or _nothing()
        return self._manifest


def _partition(row: Row, columns: Sequence[str]) -> str:
    return "/".join(
        f"{quote(name, safe='')}={_NULL if row[name] is None else quote(text_of(row[name]), safe='')}"
        for name in columns
    )


def _epoch_of(name: str) -> int:
    return int(name.rpartition("/")[2].split("-")[1])


def _nothing() -> dict[str, Any]:
    return {"position": None, "columns": {}, "files": [], "left": {}}


def _names_in(manifest: Mapping[str, Any]) -> set[str]:
    return {entry["path"] for entry in manifest["files"]} | manifest["left"].keys()
