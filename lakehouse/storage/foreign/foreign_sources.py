"""Folders and tables of others as ingest tables follow them: what has come is registered, and what cannot be is named."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from lakehouse.declare.columns import column_names
from lakehouse.declare.inputs.sources import (
    DeltaSource,
    FilesSource,
    FolderSource,
    IcebergSource,
    TableSource,
)
from lakehouse.errors import SourceError
from lakehouse.storage.disk.files import digest_of
from lakehouse.storage.foreign import foreign_files, foreign_log, iceberg_feed
from lakehouse.storage.foreign.file_register import Register, Registered
from lakehouse.storage.foreign.foreign_files import Away, Seen, Unfit
from lakehouse.storage.foreign.iceberg_feed import IcebergFeed

_log = logging.getLogger(__name__)

_FILES = 1_000  # that are registered at once
_FORGET = 3_600.0  # seconds until it is looked again for files to forget


class Feed(Protocol):
    """What an ingest table follows: its files come into the register, in the order in which they are read."""

    register: Register

    @property
    def refused(self) -> list[str]:
        """What is there and cannot be read as it is, and why."""

    @property
    def remarks(self) -> list[str]:
        """That, and what else is to be known of what is there."""

    def look(self, read: int, most: int) -> None:
        """Registers what has come, until about so many records are ahead of those that are read.

        Now and then it forgets files of those that are read for good.

        Raises Away if what it follows is not there, SourceError if it cannot go on.
        """

    def present(self) -> Any:
        """All that is there now, for `has_read`. Raises Away."""

    def has_read(self, present: Any, read: int) -> bool:
        """Whether so many records are all of what was present then, and can be read."""


def feed_of(
    source: FilesSource,
    register: Register,
    is_lost: Callable[[Registered], bool],
    types: Mapping[str, str] = MappingProxyType({}),
) -> Feed:
    """What follows the source; `is_lost`: whether it was accepted that the records of a file are lost.

    `types`: the names of the types that columns of a table must have.
    """
    if isinstance(source, FolderSource):
        return FolderFeed(source, register, is_lost)
    if isinstance(source, IcebergSource):
        return IcebergFeed(source, register, types)
    return TableFeed(source, register, types)


def follow_renames(source: FilesSource, register: Register) -> bool:
    """Notes which files of a folder have another name now; whether one has. Raises Away."""
    if not isinstance(source, FolderSource):
        return False
    return FolderFeed(source, register, lambda known: False).follow_renames()


class FolderFeed:
    """Follows a folder: a file is registered once it stands still."""

    def __init__(
        self, source: FolderSource, register: Register, is_lost: Callable[[Registered], bool]
    ) -> None:
        self.register = register
        self._source, self._is_lost = source, is_lost
        self._folder = Path(source.address)
        self._columns = column_names(source.schema) if source.header else None
        self._watched: dict[str, tuple[float, Seen]] = {}  # since when they are as they are
        self._refused: dict[str, tuple[Seen, str]] = {}
        # of registered files that were written to since: whether they hold what they held
        self._compared: dict[str, tuple[Seen, bool]] = {}
        self._forget_at = 0.0

    @property
    def refused(self) -> list[str]:
        return [why for _, why in list(self._refused.values())]

    @property
    def remarks(self) -> list[str]:
        changed = [path for path, (_, same) in list(self._compared.items()) if not same]
        return self.refused + [self._changed(path) for path in changed]

    def _changed(self, path: str) -> str:
        return (
            f"file={self._folder / path}: it was written to since it was read, and a file is read once, so what is new in it is "
            "not read; put that into a file of another name"
        )

    def present(self) -> list[str]:
        return [each.path for each in foreign_files.listed(self._folder, self._source.pattern)]

    def has_read(self, present: list[str], read: int) -> bool:
        return all(self._has_read(path, read) for path in present)

    def _has_read(self, path: str, read: int) -> bool:
        registered = self.register.of_path(path)
        if registered is not None and registered.end <= read:
            return True
        return path in self._refused or foreign_files.seen(self._folder, path) is None

    def look(self, read: int, most: int) -> None:
        listing = foreign_files.listed(self._folder, self._source.pattern)
        now, paths = time.monotonic(), {each.path for each in listing}
        for kept in (self._watched, self._refused, self._compared):
            for path in kept.keys() - paths:
                del kept[path]
        ready = []
        for each in listing:
            registered = self.register.of_path(each.path)
            if registered is not None and not self._is_new(registered, each, read):
                continue
            since, was = self._watched.get(each.path, (now, each))
            if was != each:
                since = now
            self._watched[each.path] = since, each
            if now - since >= self._source.settle.total_seconds():
                ready.append(each)
        ready.sort(key=lambda each: (each.modified, each.path))
        self._register(ready, read, most)
        if self._source.forget and now >= self._forget_at:
            self._forget_at = now + _FORGET
            old = time.time_ns() - int(self._source.forget.total_seconds() * 1e9)
            self.register.forget(read, lambda f: f.path not in paths and f.modified < old)

    def _is_new(self, known: Registered, found: Seen, read: int) -> bool:
        """Whether a file of a registered path is another one, of which nothing was or will be read."""
        if (found.size, found.modified) == (known.size, known.modified):
            self._compared.pop(found.path, None)
            return False
        before, was_same = self._compared.get(found.path, (None, True))
        if before != found:
            same = found.size == known.size and self._digest(found) == known.digest
            self._compared[found.path] = found, same
            # a file that goes on growing is said once
            if was_same and not same and known.first < read and not self._is_lost(known):
                _log.warning(f"table={self.register.table}: {self._changed(found.path)}")
        if self._compared[found.path][1]:
            return False
        if known.count == 0 or self._is_lost(known):
            del self._compared[found.path]
            return True
        if known.first >= read:  # the step that is to read it says so
            del self._compared[found.path]
        return False

    def _digest(self, found: Seen) -> str:
        try:
            return digest_of(self._folder / found.path)
        except OSError:  # moved meanwhile, or not to be read
            return ""

    def _register(self, ready: list[Seen], read: int, most: int) -> None:
        added: list[Registered] = []
        ahead = self.register.end - read
        for each in ready:
            if ahead >= most or len(added) >= _FILES:
                break
            if self._refused.get(each.path, (None, ""))[0] == each:
                continue
            new = self._measured(each)
            if new is None:
                continue
            if old := self._renamed(new):
                self.register.move(old, new.path)
                _log.info(
                    f"table={self.register.table}: {new.path} is {old.path} under another name"
                )
            else:
                added.append(new)
                ahead += new.count
            self._refused.pop(each.path, None)
            self._watched.pop(each.path, None)
        self.register.add(added)

    def _measured(self, found: Seen) -> Registered | None:
        """The file with what it holds; None if it changes meanwhile, or cannot be read."""
        try:
            new = foreign_files.registered(self._folder, found, self._columns, self._source.of_rows)
        except FileNotFoundError:
            return None
        except (Unfit, OSError) as err:
            why = f"file={self._folder / found.path}: it is not read, since {err}; correct it, or take it away"
            if self._refused.get(found.path, (None, ""))[1] != why:
                _log.warning(f"table={self.register.table}: {why}")
            self._refused[found.path] = found, why
            return None
        return new if foreign_files.seen(self._folder, found.path) == found else None

    def follow_renames(self) -> bool:
        """Notes at once which registered files have another name now; whether one has."""
        sizes, moved = {known.size for known in self.register.files}, False
        for each in foreign_files.listed(self._folder, self._source.pattern):
            if each.size not in sizes or self.register.of_path(each.path) is not None:
                continue
            new = self._measured(each)
            if new is not None and (old := self._renamed(new)):
                self.register.move(old, new.path)
                moved = True
        return moved

    def _renamed(self, new: Registered) -> Registered | None:
        """The registered file that has another name now: it holds the same since the same time, and is not where it was."""
        for old in self.register.like(new):
            if (
                foreign_files.is_same_time(old.modified, new.modified)
                and foreign_files.seen(self._folder, old.path) is None
            ):
                return old
        return None


class TableFeed:
    """Follows a Delta table of others: first the files that it has, then those that each version adds."""

    def __init__(self, source: DeltaSource, register: Register, types: Mapping[str, str]) -> None:
        self.register = register
        self._types = types
        self._path, self._changes = Path(source.address), source.of_changes
        # versions and how many records there are with them: the last that is read, and what follows
        self._ends = [(register.through, register.end)]
        self._forget_at = 0.0

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
        if (now := time.monotonic()) >= self._forget_at:  # no version adds a file again
            self._forget_at = now + _FORGET
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
        since = self.register.since  # by a process that ended in between
        self.register.add([each for each in files if each.identity not in since], version)
        self._ends.append((version, self.register.end))


def passed_over(source: TableSource, register: Register) -> int | None:
    """The version up to which someone has to accept that it is not read; None if the next one can be."""
    if isinstance(source, IcebergSource):
        return iceberg_feed.passed_over(source, register)
    path, following = Path(source.address), register.through + 1
    if register.through < 0 or following > foreign_log.latest(path):
        return None
    version = foreign_log.version(path, following, source.of_changes)
    if version is None:
        return foreign_log.oldest(path) - 1
    return following if version.removes or version.lost else None


def unread(source: FilesSource, register: Register, read: int) -> list[str]:
    """What is there and is not read, or not as it is: for people to look at, nothing is registered. None of it may last."""
    waiting = [
        f"{registered.path} is yet to be read"
        for registered in register.from_record(read)
        if registered.end > read
    ]
    if isinstance(source, TableSource):
        return waiting
    try:
        listing = foreign_files.listed(Path(source.address), source.pattern)
    except Away as err:
        return [*waiting, str(err)]
    for each in listing:
        registered = register.of_path(each.path)
        if registered is None:
            waiting.append(f"{each.path} is not registered")
        elif registered.size != each.size or (
            registered.modified != each.modified
            and digest_of(Path(source.address) / each.path) != registered.digest
        ):
            waiting.append(f"{each.path} was written to since it was registered")
    return waiting
