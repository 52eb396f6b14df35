"""Iceberg tables of others, as pyiceberg reads them: where they are, and what each snapshot did."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lakehouse.declare import secrets
from lakehouse.declare.inputs.iceberg import IcebergSource
from lakehouse.errors import LakehouseError, SourceError
from lakehouse.storage.foreign.file_register import Registered
from lakehouse.storage.foreign.foreign_files import Away

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table as Found
    from pyiceberg.table.snapshots import Snapshot

EMPTY = 0
"""Stands for the snapshot of a table that has none: no id is 0."""
_FRESH = 60.0  # seconds for which what a catalog said is good enough to open files: it may have given a password for them
_WRONG = (ValueError, TypeError, LookupError, AttributeError, NotImplementedError)
_SHOWN = 300  # characters of an error of others


class IcebergTable:
    """An Iceberg table, asked for at its catalog."""

    def __init__(self, source: IcebergSource) -> None:
        self.name = source.address
        self._properties = dict(source.catalog)
        self._catalog: Any = None
        self._found: Found | None = None
        self._since = 0.0

    def load(self) -> "Found":
        """The table as it is now. Raises Away, SourceError."""
        with self.asking():
            self._found = self._load()
            self._since = time.monotonic()
            return self._found

    def io(self) -> "FileIO":
        """Returns what opens the table's files. Raises Away, SourceError."""
        if self._found is None or time.monotonic() - self._since > _FRESH:
            self.load()
        assert self._found is not None
        return self._found.io

    def has(self, path: str) -> bool:
        """Returns True if a file is there. Raises Away, SourceError."""
        with self.asking():
            return self.io().new_input(path).exists()

    def _load(self) -> "Found":
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.table import StaticTable
        except ModuleNotFoundError as err:
            raise SourceError(
                f"iceberg_table={self.name}, package={err.name}: it is not installed, for it belongs to an extra; pip install "
                "'unified-lakehouse[iceberg]'"
            ) from err
        if not self._properties:
            return StaticTable.from_metadata(self.name)
        if self._catalog is None:
            given = {
                key: secrets.filled(value, self._lacking) for key, value in self._properties.items()
            }
            if given.get("type") == "sql":  # a reader makes no tables in the database of others
                given.setdefault("init_catalog_tables", "false")
            self._catalog = load_catalog(given.pop("name", "default"), **given)
        return self._catalog.load_table(self.name)

    def _lacking(self, name: str) -> SourceError:
        return SourceError(
            f"iceberg_table={self.name}, variable={name}: its catalog is declared with it, and the environment of the job does "
            "not have it; set it there and start the job again"
        )

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Turns a missing answer of catalog or files into Away (they are asked again), and a wrong one into SourceError."""
        try:
            yield
        except LakehouseError:
            raise
        except Exception as err:
            self._catalog = None
            text = " ".join(str(err).split())[:_SHOWN]
            if isinstance(err, _WRONG):
                raise SourceError(
                    f"iceberg_table={self.name}: pyiceberg must be able to read it, and cannot ({type(err).__name__}: {text}); "
                    "have its owner write a copy that it reads"
                ) from err
            raise Away(
                f"iceberg_table={self.name}: its catalog and its files must be there and be readable, and are not "
                f"({type(err).__name__}: {text}); check name and catalog, and that they can be reached"
            ) from err


# ---- snapshots


@dataclass(frozen=True, slots=True)
class Ahead:
    """The snapshots behind one that was read, the first of them first."""

    snapshots: "list[Snapshot]" = field(default_factory=list)
    broken: str = ""  # why these do not go on from there
    passing: int = EMPTY  # then: up to which snapshot is passed over, if someone accepts that


def sequence_of(table: "Found") -> int:
    """The number of the newest commit; 0 in the first version of the format, which has none."""
    snapshot = table.current_snapshot()
    return (
        (snapshot.sequence_number or 0)
        if snapshot
        else getattr(table.metadata, "last_sequence_number", 0)
    )


def newest(table: "Found") -> int:
    """The id of the present snapshot."""
    snapshot = table.current_snapshot()
    return snapshot.snapshot_id if snapshot else EMPTY


def ahead(table: "Found", through: int, sequence: int | None) -> Ahead:
    """Returns the snapshots behind `through`, up to the present one; `sequence`: the number of its commit, if it is known."""
    if newest(table) == through:
        return Ahead()
    kept = {each.snapshot_id: each for each in table.snapshots()}
    snapshots: list[Snapshot] = []
    at = table.current_snapshot()
    while at is not None:
        snapshots.append(at)
        if at.parent_snapshot_id is not None and at.parent_snapshot_id == through:
            return Ahead(snapshots[::-1])
        at = kept.get(at.parent_snapshot_id or EMPTY)
    first = snapshots[-1] if snapshots else None
    if first is not None and through not in kept:
        if first.parent_snapshot_id is None and _is_next(table, first, through, sequence):
            return Ahead(snapshots[::-1])
        return Ahead(
            [],
            f"snapshots between {through} and {first.snapshot_id} are expired, or the table was replaced, and they were not "
            "read, so what they added is lost",
            first.parent_snapshot_id or first.snapshot_id,
        )
    return Ahead(
        [],
        "the present snapshot does not go back to the one that was read last, as after a rollback: it removes or changes "
        "rows, and an ingest table keeps the rows that it has read",
        newest(table),
    )


def _is_next(table: "Found", first: "Snapshot", through: int, sequence: int | None) -> bool:
    """Returns True if a snapshot that names no parent follows one that is expired: some writers take that name away."""
    if table.format_version == 1:  # which does not number its commits
        return through == EMPTY and not any(_of_before(m, first) for m in first.manifests(table.io))
    if sequence is None or first.sequence_number != sequence + 1:
        return False
    has_older = any(m.min_sequence_number <= sequence for m in first.manifests(table.io))
    return has_older or through == EMPTY


def _of_before(manifest: "ManifestFile", snapshot: "Snapshot") -> bool:
    """Returns True if a manifest has files that were there before the snapshot."""
    of_another = manifest.added_snapshot_id != snapshot.snapshot_id
    return of_another or manifest.existing_files_count != 0


def added_by(table: "Found", snapshot: "Snapshot") -> tuple[list[Registered], str]:
    """The files that a snapshot adds, and its operation if it takes rows away or changes them. Raises SourceError."""
    from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
    from pyiceberg.table.snapshots import Operation

    operation = snapshot.summary.operation if snapshot.summary else None
    if operation == Operation.REPLACE:  # compaction: the rows are the same
        return [], ""
    entries = []
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            if (
                entry.snapshot_id != snapshot.snapshot_id
                or entry.status == ManifestEntryStatus.EXISTING
            ):
                continue
            removes = entry.status == ManifestEntryStatus.DELETED
            if removes or manifest.content == ManifestContent.DELETES:
                return [], operation.value if operation else "unknown"
            entries.append(entry)
    return [_registered(table, entry.data_file, snapshot.timestamp_ms) for entry in entries], ""


def present_files(table: "Found") -> list[Registered]:
    """The files of the present snapshot, in the order in which they were added, without dead rows. Raises SourceError."""
    from pyiceberg.manifest import DataFileContent
    from pyiceberg.table.delete_file_index import DeleteFileIndex

    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    times = {each.snapshot_id: each.timestamp_ms for each in table.snapshots()}
    entries, deletes = [], DeleteFileIndex()
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.data_file.content == DataFileContent.DATA:
                entries.append(entry)
            elif entry.data_file.content == DataFileContent.POSITION_DELETES:
                deletes.add_delete_file(entry, entry.data_file.partition)
            else:
                raise SourceError(
                    f"iceberg_table={table.metadata_location}, file={entry.data_file.file_path}: it says by equality which rows "
                    "are deleted, and such a table is not read; have its owner compact the table, so that no such file is left, "
                    "or write a copy"
                )

    def when(entry: Any) -> tuple[int, int]:
        return entry.sequence_number or 0, times.get(entry.snapshot_id or EMPTY, 0)

    found = []
    for entry in sorted(entries, key=when):
        file, at = entry.data_file, times.get(entry.snapshot_id or EMPTY, snapshot.timestamp_ms)
        dead = deletes.for_data_file(entry.sequence_number or 0, file, file.partition)
        found.append(_registered(table, file, at, sorted(dead, key=lambda each: each.file_path)))
    return found


def _registered(
    table: "Found", file: "DataFile", at: int, dead: "list[DataFile] | None" = None
) -> Registered:
    from pyiceberg.conversions import to_json
    from pyiceberg.manifest import FileFormat
    from pyiceberg.transforms import IdentityTransform

    if file.file_format != FileFormat.PARQUET:
        raise SourceError(
            f"iceberg_table={table.metadata_location}, file={file.file_path}, format={file.file_format.value}: only files of "
            "Parquet are read; have its owner write a copy in Parquet (write.format.default=parquet), and read the copy"
        )
    spec, schema = table.specs()[file.spec_id or 0], table.schema()
    values = {}
    for place, each in enumerate(spec.fields):
        if isinstance(each.transform, IdentityTransform) and each.source_id in schema.field_ids:
            of_type = schema.find_type(each.source_id)
            value = file.partition[place]
            values[str(each.source_id)] = None if value is None else to_json(of_type, value)  # type: ignore[arg-type]  # a partition has primitive values
    known = Registered(
        file.file_path,
        file.file_size_in_bytes,
        at * 1_000_000,
        file.record_count,
        values=values,
        vector={"deletes": [[d.file_path, d.file_format.value] for d in dead]} if dead else None,
    )
    return replace(known, count=known.count - len(dead_rows(table.io, known)))


def dead_rows(io: "FileIO", known: Registered) -> np.ndarray:
    """The places in a file of rows that delete files and deletion vectors mark."""
    from pyiceberg.io.pyarrow import _read_deletes
    from pyiceberg.manifest import DataFile, FileFormat

    places = [np.empty(0, np.int64)]
    for path, kind in (known.vector or {}).get("deletes", ()):
        marked = _read_deletes(io, DataFile.from_args(file_path=path, file_format=FileFormat(kind)))
        if known.path in marked:
            places.append(marked[known.path].to_numpy().astype(np.int64))
    return np.unique(np.concatenate(places))
