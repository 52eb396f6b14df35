"""The position of a table in its input, and the files that come next: commit by commit, by the input's log alone.

A position is written with the rows that were computed up to it, in their commit, in the form of
Spark's own offsets (`reservoirVersion`, `index`): a table whose query was Spark's goes on by steps,
and the other way round.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakehouse.errors import CommitError
from lakehouse.object_paths import ObjectPath
from lakehouse.storage.delta import delta_log, write_cache


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The next file to read: the one after `index` in a version of the input; -1: the version's first."""

    version: int
    index: int = -1

    @classmethod
    def of(cls, offset: Mapping) -> "Position":
        # Spark had read the table as it was at that version, in one batch
        if offset.get("isStartingVersion"):
            return cls(offset["reservoirVersion"] + 1)
        return cls(offset["reservoirVersion"], max(offset["index"], -1))

    def offset(self, identity: str) -> dict[str, Any]:
        """Returns the form that is kept with a commit. `identity`: the input's id, which no other table has."""
        return {
            "sourceVersion": 1,
            "reservoirId": identity,
            "reservoirVersion": self.version,
            "index": self.index,
            "isStartingVersion": False,
        }


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of the input that one step reads: files, the number of rows in them, and where the next step begins."""

    files: tuple[Path, ...]
    rows: int
    end: Position


@dataclass(frozen=True, slots=True)
class _Added:
    path: Path
    rows: int
    after: Position


def whole(path: Path, version: int) -> Piece:
    """Returns the table as it is at that version."""
    files = delta_log.files(path, version)
    rows = sum(file["num_records"] or 0 for file in files)
    return Piece(
        tuple(delta_log.data_file(path, file) for file in files), rows, Position(version + 1)
    )


def following(path: Path, position: Position, files: int, until: int | None = None) -> Piece:
    """Returns what was added after the position: at most so many `files`, in commits up to version `until`.

    A piece without files says how far the log has nothing to read. Raises CommitError if the log
    begins after the position, or ends before it.
    """
    taken: list[_Added] = []
    version = position.version
    while (until is None or version <= until) and (added := _added(path, version)) is not None:
        new = [file for file in added if file.after > position]
        if len(taken) + len(new) > files:
            taken += new[: files - len(taken)]
            return _piece(taken, taken[-1].after)
        taken += new
        version += 1
        if len(taken) == files:
            break
    if not taken and version == position.version:
        _check_kept(path, version)
        return Piece((), 0, position)
    return _piece(taken, Position(version))


def changed(path: Path, position: Position, until: int | None = None) -> Piece:
    """Returns what came or went after the position: the files that any commit added or removed, in whole commits.

    `rows` counts the added ones. Raises CommitError if the log begins after the position, or ends before it.
    """
    files: list[Path] = []
    rows, version = 0, position.version
    while (until is None or version <= until) and (
        moved := delta_log.moved(path, version)
    ) is not None:
        files += [delta_log.data_file(path, file) for _, file in moved]
        rows += sum(_rows(file) for kind, file in moved if kind == "add")
        version += 1
    if version == position.version:
        _check_kept(path, version)
    return Piece(tuple(files), rows, Position(version))


def between(path: Path, start: Position, end: Position) -> Piece:
    """Returns what lies between two positions: what an interrupted step had read."""
    last = end.version if end.index >= 0 else end.version - 1
    files = (file for version in range(start.version, last + 1) for file in _kept(path, version))
    return _piece([file for file in files if start < file.after <= end], end)


def replaced(path: Path, piece: Piece) -> tuple[Path, ...]:
    """Returns files of the piece that are gone from disk and whose rows a later commit replaced: its rows are read elsewhere.

    A file that compaction has replaced is not among them: its rows are in another file now, which
    no reader takes for new.
    """
    # what this process has just written to an object store is there, without a request for each file
    in_memory = isinstance(path, ObjectPath)
    asked = [f for f in piece.files if not (in_memory and write_cache.rows_of([f]) is not None)]
    gone = set(delta_log.missing(asked))
    if not gone:
        return ()
    removed: set[Path] = set()
    for version in delta_log.versions(path):
        moved = delta_log.moved(path, version) or []
        removed |= {delta_log.data_file(path, file) for kind, file in moved if kind == "remove"}
    return tuple(sorted(gone & removed))


def begins(path: Path) -> Position:
    """Returns the position of the first commit that the input's log still has."""
    return Position(delta_log.oldest(path))


def another(path: Path, identity: str) -> str:
    """Returns the fault if the table at the path is not the one of that id; empty if it is."""
    made = delta_log.made(path)
    if made is None:
        return f"input={path.name}: it is not there, and the table has read it"
    if made[0] != identity:
        return (
            f"input={path.name}, id={made[0]}: the table has read the one of id {identity}, and this is another of that name, "
            "so its versions mean other rows"
        )
    return ""


class Input:
    """The table that is read, by its id. Frequent checks that it is still the same cost a look at one file.

    A commit's file never changes: while one that was there with the id is there, the table is the same.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.identity, self._vouches = path, "", (-1, "")
        self._look()

    def check(self) -> None:
        """Raises CommitError if the table is gone, or another one has its name."""
        version, stamp = self._vouches
        if not stamp or delta_log.stamp(self.path, version) != stamp:
            self._look()

    def _look(self) -> None:
        version = delta_log.latest(self.path)
        # read before the id, so that it is not that of a later table
        vouches = (
            version,
            delta_log.stamp(self.path, version),
        )
        made = delta_log.made(self.path)
        if made is None or made[0] != (self.identity or made[0]):
            raise CommitError(
                f"{another(self.path, self.identity)}; see what removed or replaced the folder {self.path}"
            )
        self.identity, self._vouches = made[0], vouches


def _piece(files: list[_Added], end: Position) -> Piece:
    return Piece(tuple(file.path for file in files), sum(file.rows for file in files), end)


def _kept(path: Path, version: int) -> list[_Added]:
    added = _added(path, version)
    if added is None:
        _check_kept(path, version)
        raise CommitError(
            f"input={path.name}, version={version}: the table's log ends before it, and it was read; put it back"
        )
    return added


def _check_kept(path: Path, version: int) -> None:
    """Raises CommitError if the version was cut from the log, or the log ends before it.

    The version may also be the next one to come.
    """
    if delta_log.stamp(path, version - 1):
        return  # asked many times a second, so the log is not listed for it
    oldest, latest = delta_log.oldest(path), delta_log.latest(path)
    if latest < version - 1 or latest < 0:
        raise CommitError(
            f"input={path.name}, version={version - 1}: it was read up to there, and "
            + (f"its log ends with {latest}" if latest >= 0 else "it is not there any more")
            + "; put it back as it was"
        )
    if version < oldest:
        raise CommitError(
            f"input={path.name}, version={version}: its log begins with {oldest}, and was read up to there only; give the table "
            "that reads it a new name, and begin that by `lakehouse bootstrap`"
        )


def _added(path: Path, version: int) -> list[_Added] | None:
    """Returns the files of rows that a commit added, each with the position after it.

    None if the log does not have the commit.

    A commit that also removed rows counts as empty: what it replaced went downstream already, and
    whoever repairs rows computes again what follows from the change.
    """
    moved = delta_log.moved(path, version)
    if moved is None:
        return None
    if any(kind == "remove" for kind, _ in moved):
        return []
    last = len(moved) - 1
    return [
        _Added(
            delta_log.data_file(path, file),
            _rows(file),
            Position(version + 1) if index == last else Position(version, index),
        )
        for index, (_, file) in enumerate(moved)
    ]


def _rows(file: Mapping) -> int:
    return json.loads(file.get("stats") or "{}").get("numRecords", 0)
