"""Folders of files as targets: a manifest, replaced in one step, names the files of one version of a table and its position.

    exports/payments/
      _manifest.json            table, version, position, and each file with its rows, bytes and checksum
      _epoch                    whose turn it is to write
      region=north/v12-3-0.parquet

A version that only adds rows is one more file in each of its partitions. Any other one writes the
partitions concerned again. A file that left the manifest stays for an hour, for readers that have
the manifest before.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
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
from lakehouse.errors import DeclarationError, SinkAway, SinkError
from lakehouse.paths import within
from lakehouse.settings import Settings
from lakehouse.sinks.formats.encoding import key_of, text_of, value_of
from lakehouse.sinks.formats.file_formats import Format, decoded, encoded
from lakehouse.storage.disk.files import replace_bytes, replace_file
from lakehouse.storage.disk.locks import Locked, alone

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "_manifest.json"
_EPOCH, _LOCK = "_epoch", "_lock"
_FOREIGN = "_foreign"  # where a repair moves files that no follower wrote
_NULL = "__HIVE_DEFAULT_PARTITION__"
_KEPT = timedelta(hours=1)  # for readers that have an earlier manifest
_MANY = 16  # files of a partition, before they are made one
_OURS = re.compile(r"(?:.*/)?v\d+-\d+-\d+\.(?:parquet|csv|json)")
_LOCKED = 30.0  # seconds to wait for another process that replaces the manifest


@dataclass(frozen=True, slots=True)
class FileFolder(Target):
    """A folder of files that holds, for each key, the row of a table."""

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
    one_of("corrections", corrections, ("send", "hold", "ignore"))
    keys = columns_of(key)
    parts = columns_of(partition_by)
    named = name or Path(path).name
    if not keys or not named:
        raise DeclarationError(
            f"path={path!r}, key={list(keys)}: a folder, and at least one column that identifies a row"
        )
    if unknown := [each for each in parts if each not in keys]:
        raise DeclarationError(
            f"target={named}, partition_by={unknown[0]!r}: a row stays in its partition, so that its deletion is found there; "
            f"add {unknown[0]} to key={list(keys)}"
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
        self._folder = Path(target.path).absolute()
        root = settings.root.absolute()
        if self._folder.is_relative_to(root) or root.is_relative_to(self._folder):
            raise SinkError(
                f"target={target.name}, path={target.path}: a folder belongs to the target alone, and one of it and the root of "
                "the lakehouse lies in the other; name a folder elsewhere"
            )
        self._epoch = 0
        self._schema: pa.Schema | None = None
        self._manifest: dict[str, Any] | None = None  # the last one, with what was written since
        self._keys: dict[str, set[str]] = {}  # of partitions that were written by this process
        self._written = 0

    def open(self) -> None:
        with self._alone():
            try:
                found, readable = self._read(), True
            except SinkError:  # the position says so
                found, readable = None, False
            there = self._there()
            ours = {name for name in there if _OURS.fullmatch(name)}
            if found:  # what a process wrote that died before its commit
                for name in ours - _known(found):
                    within(self._folder, name).unlink(missing_ok=True)
            elif readable and not ours:
                if there:
                    raise SinkError(
                        f"target={self._target.name}, path={self._folder}: it has files already ({min(there)}), and a folder "
                        "belongs to the target alone; name an empty one"
                    )
                replace_file(
                    self._folder / MANIFEST, _nothing()
                )  # its absence is a loss from now on
            # the number may be gone, and no name of a file may come again
            self._epoch = max([self._turn(), *map(_epoch_of, ours)]) + 1
            replace_bytes(self._folder / _EPOCH, str(self._epoch).encode())

    def position(self) -> Position | None:
        self._manifest = found = self._read()
        if found is not None:
            at = found["position"]
            return Position.from_json(json.dumps(at)) if at else None
        if any(map(_OURS.fullmatch, self._there())):
            raise self._refusal(f"it has files of a follower, and no {MANIFEST}")
        return None

    def columns(self, schema: "pa.Schema") -> None:
        self._schema = schema

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        by_partition: dict[str, list[RowChange]] = {}
        for change in changes:
            by_partition.setdefault(self._partition(change.row), []).append(change)
        for partition, found in by_partition.items():
            self._change(partition, version, found)

    def commit(self, position: Position) -> None:
        now = datetime.now(UTC)
        state = self._state()
        expired = {
            name
            for name, left in state["left"].items()
            if now - datetime.fromisoformat(left) > _KEPT
        }
        of_columns = {field.name: str(field.type) for field in self._schema or ()}
        manifest = {
            "table": self._table,
            "version": position.version,
            **self._layout(),
            "columns": of_columns or state["columns"],
            "files": state["files"],
            "left": {name: left for name, left in state["left"].items() if name not in expired},
            "position": json.loads(position.to_json()),
        }
        with self._alone():
            if self._turn() != self._epoch:
                raise SinkError(
                    f"target={self._target.name}: another process has taken it over; one process writes a target, so this one "
                    "ends, and nothing of what it wrote is in the manifest"
                )
            replace_file(self._folder / MANIFEST, manifest)
            _sync(self._folder)
        for name in expired:
            within(self._folder, name).unlink(missing_ok=True)
        self._manifest = manifest

    def rows(self, version: int) -> Iterator[tuple[str, str, bool]]:
        for entry in self._state()["files"]:
            if not self._fault(entry):
                for key, row in self._rows_of(entry).items():
                    yield key, value_of(row), True

    def faults(self) -> Iterator[tuple[str, Fault]]:
        state = self._state()
        for entry in state["files"]:
            if fault := self._fault(entry):
                yield entry["path"], fault
        for name in sorted(self._there() - _known(state)):
            if not _OURS.fullmatch(name):
                yield name, "foreign file"

    def mend(self) -> None:
        try:
            state = self._state()
        except SinkError:
            self._manifest = state = _nothing()
        for name, fault in list(self.faults()):
            if fault == "foreign file":
                aside = within(self._folder / _FOREIGN, name)
                aside.parent.mkdir(parents=True, exist_ok=True)
                within(self._folder, name).rename(aside)
        state["files"] = [entry for entry in state["files"] if not self._fault(entry)]

    def close(self) -> None:
        self._manifest = None

    # ---- files

    def _change(self, partition: str, version: int, changes: Sequence[RowChange]) -> None:
        """Adds a file of the new rows, or writes the partition again where others change."""
        state = self._state()
        entries = [entry for entry in state["files"] if entry["partition"] == partition]
        if partition not in self._keys:
            self._keys[partition] = {key for entry in entries for key in self._sound(entry)}
        known = self._keys[partition]
        came = {key_of(change.row, self._target.key): change for change in changes}
        appends = all(change.kind == "insert" for change in changes) and not known & came.keys()
        if appends and len(entries) < _MANY:
            rows = {key: change.row for key, change in came.items()}
        else:
            rows = {key: row for entry in entries for key, row in self._sound(entry).items()}
            for key, change in came.items():
                if change.kind == "delete":
                    rows.pop(key, None)
                else:
                    rows[key] = change.row
            now = datetime.now(UTC).isoformat()
            state["left"] |= {entry["path"]: now for entry in entries}
            state["files"] = [entry for entry in state["files"] if entry not in entries]
            known.clear()
        known |= rows.keys()
        if rows:
            state["files"].append(self._store(partition, version, list(rows.values())))

    def _store(self, partition: str, version: int, rows: Sequence[Row]) -> dict[str, Any]:
        """A new file, and what the manifest says of it."""
        self._written += 1
        name = f"v{version}-{self._epoch}-{self._written}.{self._target.format}"
        path = within(self._folder, f"{partition}/{name}" if partition else name)
        assert self._schema is not None, "columns come before rows"
        content = encoded(self._target.format, rows, self._schema)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _sync(path.parent)
        return {
            "path": f"{partition}/{name}" if partition else name,
            "partition": partition,
            "rows": len(rows),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }

    def _rows_of(self, entry: Mapping[str, Any]) -> dict[str, Row]:
        """The rows of a file by key."""
        content = (within(self._folder, entry["path"])).read_bytes()
        rows = decoded(self._target.format, content, self._types())
        return {self._stored_key(row): row for row in rows}

    def _sound(self, entry: Mapping[str, Any]) -> dict[str, Row]:
        if fault := self._fault(entry):
            raise self._refusal(f"{entry['path']} is a {fault}")
        return self._rows_of(entry)

    def _fault(self, entry: Mapping[str, Any]) -> Literal["missing file", "damaged file", ""]:
        try:
            content = (within(self._folder, entry["path"])).read_bytes()
        except FileNotFoundError:
            return "missing file"
        return "" if hashlib.sha256(content).hexdigest() == entry["sha256"] else "damaged file"

    # ---- keys and partitions

    def _types(self) -> Mapping[str, str]:
        if self._schema is not None:
            return {field.name: str(field.type) for field in self._schema}
        return self._state()["columns"]

    def _stored_key(self, row: Row) -> str:
        """The key of a row that was read, in which columns may be left out."""
        return key_of({name: row.get(name) for name in self._target.key}, self._target.key)

    def _partition(self, row: Row) -> str:
        return "/".join(
            f"{quote(name, safe='')}={_NULL if row[name] is None else quote(text_of(row[name]), safe='')}"
            for name in self._target.partition_by
        )

    # ---- the manifest

    def _state(self) -> dict[str, Any]:
        if self._manifest is None:
            self._manifest = self._read() or _nothing()
        return self._manifest

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads((self._folder / MANIFEST).read_bytes())
            if found["position"]:
                Position.from_json(json.dumps(found["position"]))
                for name, value in self._layout().items():
                    if found[name] != value:
                        raise self._refusal(f"its files have {name}={found[name]!r}, not {value!r}")
            return found | {name: found[name] for name in ("columns", "files", "left")}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as err:
            raise self._refusal(f"{MANIFEST} cannot be read ({err})") from err

    def _layout(self) -> dict[str, object]:
        """What the files of a manifest have in common."""
        of = self._target
        return {"format": of.format, "key": [*of.key], "partition_by": [*of.partition_by]}

    def _there(self) -> set[str]:
        """The files of the folder but for the target's own, by their names in it."""
        found = (path for path in self._folder.rglob("*") if path.is_file())
        names = {path.relative_to(self._folder).as_posix() for path in found}
        return {name for name in names if not name.startswith("_")}

    def _turn(self) -> int:
        try:
            return int((self._folder / _EPOCH).read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _refusal(self, what: str) -> SinkError:
        return SinkError(
            f"target={self._target.name}, path={self._folder}: {what}; `lakehouse reconcile sink {self._target.name} --repair` "
            "writes it again"
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with alone(self._folder / _LOCK, wait=_LOCKED):
                yield
        except Locked as err:
            raise SinkAway(f"target={self._target.name}: {err}") from err


def _epoch_of(name: str) -> int:
    return int(name.rpartition("/")[2].split("-")[1])


def _nothing() -> dict[str, Any]:
    return {"position": None, "columns": {}, "files": [], "left": {}}


def _known(manifest: Mapping[str, Any]) -> set[str]:
    return {entry["path"] for entry in manifest["files"]} | manifest["left"].keys()


def _sync(folder: Path) -> None:
    """Has the names in a folder outlast a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
