"""Folders as ingest tables follow them: what has come is registered, and what cannot be is named."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from lakehouse.declare.columns import column_names
from lakehouse.declare.inputs.folder import FolderSource
from lakehouse.errors import SourceError
from lakehouse.storage.disk.files import digest_of
from lakehouse.storage.foreign import foreign_files
from lakehouse.storage.foreign.file_register import Register, Registered
from lakehouse.storage.foreign.foreign_contract import ForeignFiles, IsLost, Opened
from lakehouse.storage.foreign.foreign_files import Lines, Rows, Seen, Unfit

_log = logging.getLogger(__name__)

_FILES = 1_000  # that are registered at once


class FolderFiles(ForeignFiles):
    """The files of a folder."""

    may_rename = True

    def __init__(self, source: FolderSource, register: Register) -> None:
        super().__init__(source.address, register)
        self._source = source
        self._compared: dict[str, tuple[Seen, str]] = {}  # files, and what is wrong with each

    def feed(
        self, is_lost: IsLost, types: Mapping[str, str] = MappingProxyType({})
    ) -> "FolderFeed":
        return FolderFeed(self._source, self.register, is_lost)

    def open(self, known: Registered) -> Opened:
        foreign_files.check(self.path, known, self.register.table)
        path = self.path / known.path
        if self._source.of_rows:
            return Rows(path, self.path, known, pa.schema([]))
        return Lines(path, known, self._source.max_bytes)

    def has(self, known: Registered) -> bool:
        try:
            foreign_files.check(self.path, known, self.register.table)
        except SourceError:
            return False
        return True

    def stamp(self, known: Registered) -> Seen | None:
        return foreign_files.seen(self.path, known.path)

    def follow_renames(self) -> bool:
        sizes, moved = {known.size for known in self.register.files}, False
        for file in foreign_files.listed(self.path, self._source.pattern):
            if file.size not in sizes or self.register.of_path(file.path) is not None:
                continue
            try:
                new = _measured(self._source, file)
            except Unfit:  # the feed says so
                continue
            if new is not None and (old := _renamed(self.path, self.register, new)):
                self.register.move(old, new.path)
                moved = True
        return moved

    def unregistered(self) -> list[str]:
        waiting = []
        for each in foreign_files.listed(self.path, self._source.pattern):
            registered = self.register.of_path(each.path)
            if registered is None:
                waiting.append(f"{each.path} is not registered")
            elif not _is_same(self.path, registered, each):
                waiting.append(f"{each.path} was written to since it was registered")
        return waiting

    @property
    def settle(self) -> float:
        return self._source.settle.total_seconds()

    def changed(self) -> tuple[str, int]:
        listing = foreign_files.listed(self.path, self._source.pattern)
        compared = {each.path: self._became(each) for each in listing}
        self._compared = {each.path: (each, compared[each.path]) for each in listing}
        changed = [f"{path}, which {what}" for path, what in sorted(compared.items()) if what]
        return (f"file {changed[0]}" if changed else ""), len(changed)

    def _became(self, found: Seen) -> str:
        """Returns what became of a file; empty if it is as it was when it was read."""
        before = self._compared.get(found.path)
        if before and before[0] == found:
            return before[1]
        known = self.register.of_path(found.path)
        if known is None:
            return "" if self._is_renamed(found) else "has come since"
        return "" if _is_same(self.path, known, found) else "was written to since"

    def _is_renamed(self, found: Seen) -> bool:
        return any(
            known.size == found.size
            and foreign_files.is_same_time(known.modified, found.modified)
            and foreign_files.seen(self.path, known.path) is None
            and known.digest == _digest(self.path / found.path)
            for known in self.register.files
        )


class FolderFeed:
    """Follows a folder: a file is registered once it stands still."""

    def __init__(self, source: FolderSource, register: Register, is_lost: IsLost) -> None:
        self.register = register
        self._source, self._is_lost = source, is_lost
        self._folder = Path(source.address)
        self._watched: dict[str, tuple[float, Seen]] = {}  # since when they are as they are
        self._refused: dict[str, tuple[Seen, str]] = {}
        # of registered files that were written to since: whether they hold what they held
        self._compared: dict[str, tuple[Seen, bool]] = {}

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
        registered = {path: self.register.of_path(path) for path in present}
        return all(
            (known is not None and known.end <= read)
            or path in self._refused
            or foreign_files.seen(self._folder, path) is None
            for path, known in registered.items()
        )

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
        if self._source.forget:
            old = time.time_ns() - int(self._source.forget.total_seconds() * 1e9)
            self.register.forget(read, lambda f: f.path not in paths and f.modified < old)

    def _is_new(self, known: Registered, found: Seen, read: int) -> bool:
        """Returns True if a file of a registered path is another one, of which nothing was or will be read."""
        if (found.size, found.modified) == (known.size, known.modified):
            self._compared.pop(found.path, None)
            return False
        before, was_same = self._compared.get(found.path, (None, True))
        if before != found:
            same = _is_same(self._folder, known, found)
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

    def _register(self, ready: list[Seen], read: int, most: int) -> None:
        added: list[Registered] = []
        ahead = self.register.end - read
        for each in ready:
            if ahead >= most or len(added) >= _FILES:
                break
            if self._refused.get(each.path, (None, ""))[0] == each:
                continue
            try:
                new = _measured(self._source, each)
            except Unfit as err:
                self._refuse(each, err)
                continue
            if new is None:
                continue
            if old := _renamed(self._folder, self.register, new):
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

    def _refuse(self, found: Seen, err: Unfit) -> None:
        why = f"file={self._folder / found.path}: it is not read, since {err}; correct it, or take it away"
        if self._refused.get(found.path, (None, ""))[1] != why:
            _log.warning(f"table={self.register.table}: {why}")
        self._refused[found.path] = found, why


def _measured(source: FolderSource, found: Seen) -> Registered | None:
    """Returns the file with what it holds; None if it changes meanwhile. Raises Unfit if it cannot be read."""
    folder = Path(source.address)
    columns = column_names(source.schema) if source.header else None
    try:
        new = foreign_files.registered(folder, found, columns, source.of_rows)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise Unfit(str(err)) from err
    return new if foreign_files.seen(folder, found.path) == found else None


def _renamed(folder: Path, register: Register, new: Registered) -> Registered | None:
    """Returns the registered file that has another name now: it holds the same since the same time, and is not where it was."""
    for old in register.like(new):
        if (
            foreign_files.is_same_time(old.modified, new.modified)
            and foreign_files.seen(folder, old.path) is None
        ):
            return old
    return None


def _is_same(folder: Path, known: Registered, found: Seen) -> bool:
    """Returns True if a file that is registered by its path holds what it held."""
    if found.size != known.size:
        return False
    return found.modified == known.modified or _digest(folder / found.path) == known.digest


def _digest(path: Path) -> str:
    try:
        return digest_of(path)
    except OSError:  # moved meanwhile, or not to be read
        return ""
