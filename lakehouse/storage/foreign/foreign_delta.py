"""Delta tables of others as ingest tables follow them: version by version."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from lakehouse.declare.inputs.delta import DeltaSource
from lakehouse.errors import SourceError
from lakehouse.storage.foreign import foreign_log
from lakehouse.storage.foreign.file_register import Register, Registered
from lakehouse.storage.foreign.foreign_contract import ForeignFiles, IsLost, Opened
from lakehouse.storage.foreign.foreign_files import Rows, gone


class DeltaFiles(ForeignFiles):
    """The files of a Delta table of others."""

    def __init__(self, source: DeltaSource, register: Register) -> None:
        super().__init__(source.address, register)
        self._source = source
        self._through = register.through  # the last version that was looked at
        self._first = ""  # of the versions after what was read that add or remove rows
        self._many = 0  # of those

    def feed(self, is_lost: IsLost, types: Mapping[str, str] = MappingProxyType({})) -> "TableFeed":
        return TableFeed(self._source, self.register, types)

    def open(self, known: Registered) -> Opened:
        path = foreign_log.location(self.path, known.path)
        try:
            types = foreign_log.partition_types(self.path) if known.values else pa.schema([])
            return Rows(path, self.path, known, types, foreign_log.own_columns(known))
        except FileNotFoundError as err:
            raise gone(self.path, known, self.register.table) from err

    def has(self, known: Registered) -> bool:
        return foreign_log.location(self.path, known.path).exists()

    def passed_over(self) -> int | None:
        following = self.register.through + 1
        if self.register.through < 0 or following > foreign_log.latest(self.path):
            return None
        version = foreign_log.version(self.path, following, self._source.of_changes)
        if version is None:
            return foreign_log.oldest(self.path) - 1
        return following if version.removes or version.lost else None

    def changed(self) -> tuple[str, int]:
        newest = foreign_log.latest(self.path)
        while self._through < newest:
            self._through += 1
            version = foreign_log.version(self.path, self._through)
            if version is None or version.added or version.removes:
                what = version.removes if version else "not in the log any more"
                self._first = (
                    self._first or f"version {self._through} ({what or 'rows were added'})"
                )
                self._many += 1
        return self._first, self._many


class TableFeed:
    """Follows a Delta table of others: first the files that it has, then those that each version adds."""

    def __init__(self, source: DeltaSource, register: Register, types: Mapping[str, str]) -> None:
        self.register = register
        self._types = types
        self._path, self._changes = Path(source.address), source.of_changes
        # versions and how many records there are with them: the last that is read, and what follows
        self._ends = [(register.through, register.end)]

    refused: list[str] = []
    remarks: list[str] = []

    def present(self) -> int:
        return foreign_log.latest(self._path)

    def has_read(self, present: int, read: int) -> bool:
        return any(version >= present and end <= read for version, end in list(self._ends))

    def look(self, read: int, most: int) -> None:
        past = sum(end <= read for _, end in self._ends)
        self._ends = self._ends[max(past - 1, 0) :]
        newest = foreign_log.latest(self._path)
        if self.register.through < 0:
            known = foreign_log.about(self._path)
            foreign_log.check_readable(self._path, known)
            foreign_log.check_columns(self._path, known["metaData"], self._types)
            self._add(foreign_log.files_at(self._path, newest, self._changes), newest)
        while self.register.through < newest and self.register.end - read < most:
            version = foreign_log.version(self._path, self.register.through + 1, self._changes)
            wrong = self._wrong(version)
            if wrong and read < self.register.end:
                return  # what comes before it is read first
            if wrong or version is None:
                raise SourceError(wrong)
            if any(version.about.values()):
                foreign_log.check_readable(self._path, version.about)
            self._add(version.added, self.register.through + 1)
        # no version adds a file again
        self.register.forget(read, lambda file: file.identity not in self.register.since)

    def _wrong(self, version: foreign_log.Version | None) -> str:
        """Why the next version cannot be read."""
        number = self.register.through + 1
        where = f"table={self.register.table}, path={self._path}, version={number}"
        remedy = f"`lakehouse topic accept-gap {self.register.table}` passes over it, and goes on behind it"
        if version is None:
            return (
                f"{where}: its log does not have this version any more, and it was not read, so what it added is lost; {remedy}; "
                "have its owner keep the log for longer"
            )
        if version.removes:
            return (
                f"{where}, operation={version.removes}: it removes or changes rows, and an ingest table keeps the rows that it "
                f"has read; {remedy}, or read the table by an ingest table of another name, which begins with the rows of now, "
                "and with delta_table(..., changes=True) follows its changes, too"
            )
        if version.lost:
            return (
                f"{where}, file={version.lost}: the file, or what the log said of it, was removed before it was read (VACUUM), "
                f"so what this version changed is lost; {remedy}; have its owner keep files and log for longer"
            )
        return ""

    def _add(self, files: list[Registered], version: int) -> None:
        self.register.add(files, version)
        self._ends.append((version, self.register.end))
