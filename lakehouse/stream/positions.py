"""How far a table has read its input, and what comes next: files, commit by commit, by the input's log alone.

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
from lakehouse.storage.delta import delta_log


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The next file to read: that behind `index` of a version of the input.

    -1: the version's first.
    """

    version: int
    index: int = -1

    @classmethod
    def of(cls, offset: Mapping) -> "Position":
        # Spark had read the table as it was at that version, in one batch
        if offset.get("isStartingVersion"):
            return cls(offset["reservoirVersion"] + 1)
        return cls(offset["reservoirVersion"], max(offset["index"], -1))

    def offset(self, identity: str) -> dict[str, Any]:
        """As it is kept with a commit. `identity`: the input's id, which no other table has."""
        return {
            "sourceVersion": 1,
            "reservoirId": identity,
            "reservoirVersion": self.version,
            "index": self.index,
            "isStartingVersion": False,
        }


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step reads: files of the input, the rows in them, and where the next step begins."""

    files: tuple[Path, ...]
    rows: int
    end: Position


@dataclass(frozen=True, slots=True)
class _Added:
    path: Path
    rows: int
    after: Position


def whole(path: Path, version: int) -> Piece:
    """The table as it is at that version."""
    files = delta_log.files(path, version)
    rows = sum(file["num_records"] or 0 for file in files)
    return Piece(
        tuple(delta_log.data_file(path, file) for file in files), rows, Position(version + 1)
    )


def following(path: Path, position: Position, files: int, until: int | None = None) -> Piece:
    """What was added behind the position, at most so many `files`, in commits up to version `until`.

    Without files it says how far the log has nothing to read. Raises CommitError if the log was
    cut behind the position.
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
    """What came or went behind the position: the files that any commit added or removed, in whole commits.

    `rows` are those that were added. Raises CommitError if the log was cut behind the position.
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
    """What lies between two positions: what a step that was cut off had read."""
    last = end.version if end.index >= 0 else end.version - 1
    files = (file for version in range(start.version, last + 1) for file in _kept(path, version))
    return _piece([file for file in files if start < file.after <= end], end)


def replaced(path: Path, piece: Piece) -> tuple[Path, ...]:
    """Files of the piece that are not on disk, and whose rows a later commit has replaced: what it put there is read elsewhere.

    One that compaction has replaced is none of them: its rows are those of another file now, which
    no reader takes for new.
    """
    gone = set(delta_log.missing(piece.files))
    if not gone:
        return ()
    removed: set[Path] = set()
    for version in delta_log.versions(path):
        moved = delta_log.moved(path, version) or []
        removed |= {delta_log.data_file(path, file) for kind, file in moved if kind == "remove"}
    return tuple(sorted(gone & removed))


def begins(path: Path) -> Position:
    """The first commit that the input's log still has."""
    return Position(delta_log.oldest(path))


def another(path: Path, identity: str) -> str:
    """What is wrong if the table there is not the one of that id; empty if it is."""
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
    """The table that is read, by its id: asked often whether it is still the one, at the cost of a look at one file.

    A commit's file never changes, so as long as one that was there with the id is there, so is the
    table.
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
        # before the id, so that it is not of a later table
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

    It may also be the next to come.
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
    """The files of rows that a commit added, each with the position behind it.

    None if the log does not have the commit.

    A commit that also removed rows put others in their place: what it replaced went downstream
    already, and what follows from the change is computed again by those who repair it.
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
