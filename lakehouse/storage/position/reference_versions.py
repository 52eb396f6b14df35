"""The version of a refreshed reference table that a row sees: the one in force at its arrival, as its ingest table noted.

The writer of rows writes a line of the note before the first rows that it holds for. So a reader of
rows finds all lines that hold for them, and no later line changes that. The first version of each
reference table holds for all earlier rows, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.errors import CommitError
from lakehouse.ranges import EPOCH
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout, text_logs
from lakehouse.storage.disk.locks import alone
from lakehouse.storage.disk.notes import Notes
from lakehouse.storage.disk.typed_values import typed
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commits import Commit

SEEN = "refreshed references"  # key in a commit's inputs: reference table -> the versions that its rows saw


class NotKept(CommitError):
    """A version that rows saw cannot be read any more."""


@dataclass(frozen=True, slots=True)
class TakenUp:
    """A line: rows that arrive from `since` on see that version of a reference table."""

    reference: str
    version: int
    since: datetime


_decoded = partial(typed, TakenUp, later=True)  # of a later version, too


@dataclass(frozen=True, slots=True)
class InForce:
    """One version of each of some reference tables, and the rows that see these: they arrived from `since` until `until`."""

    versions: Mapping[str, int]
    since: datetime
    until: datetime | None = None

    def among(self, first: datetime, last: datetime) -> bool:
        """Returns True if a row that arrived from `first` to `last`, both included, may see these versions."""
        return self.since <= last and (self.until is None or first < self.until)


def in_force(lines: Iterable[TakenUp], names: Sequence[str]) -> list[InForce]:
    """Returns the versions in force and their periods, in order; nothing if a name has no line yet."""
    # two lines have one instant if the rows of the first were never written: then the second counts
    ordered = sorted(
        (line for line in lines if line.reference in names), key=lambda line: line.since
    )
    periods: list[InForce] = []
    versions: dict[str, int] = {}
    for line in ordered:
        changed = versions | {line.reference: line.version}
        if changed == versions:
            continue
        versions = changed
        if periods and periods[-1].since == line.since:
            periods.pop()
        elif periods:
            periods[-1] = InForce(periods[-1].versions, periods[-1].since, line.since)
        periods.append(InForce(versions, line.since))
    return periods if len(versions) == len(names) else []


def taken_up(settings: Settings, ingest: Table) -> tuple[TakenUp, ...]:
    """Returns the lines of an ingest table, oldest first. Raises CommitError if there are fewer than at the last read."""
    path = layout.note(settings, ingest, "references.jsonl")
    lines = _lines(path, text_logs.size(path))
    if len(lines) < _known.get(path, 0):
        raise _lost(path, f"it had {_known[path]} lines, and has {len(lines)}")
    _known[path] = len(lines)
    return lines


def of_table(lakehouse: Lakehouse, table: Table) -> list[InForce]:
    """Returns the versions in force for the rows of a table that reads refreshed reference tables; notes the first ones.

    Raises CommitError if a reference table was never filled, or if the versions that rows saw are not noted any more.
    """
    [ingest] = lakehouse.catalog.ingest_tables_of(table)
    names = [each.name for each in lakehouse.catalog.refreshed_inputs(table)]
    lines = taken_up(lakehouse.settings, ingest)
    last = next(lakehouse.commit_log(table).by_stream(), None)
    _check_noted(layout.note(lakehouse.settings, ingest, "references.jsonl"), table, last, lines)
    noted = {line.reference for line in lines}
    for name in (each for each in names if each not in noted):
        path = lakehouse.path(lakehouse.catalog.table(name))
        # the version that its rows saw before the reference table was declared with `refresh=`
        pinned = last.inputs.get("references", {}).get(name) if last else None
        version = pinned or delta_log.latest(path)
        if version < 1:
            raise CommitError(
                f"table={table.name}, input={name}: it has not been filled yet; start the job of its pipeline, or "
                f"`lakehouse backfill {name}`"
            )
        lines = _add(lakehouse, ingest, TakenUp(name, version, EPOCH))
    return in_force(lines, names)


def take_up(
    lakehouse: Lakehouse, ingest: Table, readers: Mapping[str, Table], at: datetime
) -> None:
    """Notes the present versions of reference tables for rows that arrive at that instant and are not written yet.

    `readers`: `Catalog.refreshed_behind`.
    """
    for name, reader in readers.items():
        present = delta_log.latest(lakehouse.path(lakehouse.catalog.table(name)))
        if present < 1:
            continue  # not filled yet, so nothing can have been computed with it
        lines = taken_up(lakehouse.settings, ingest)
        if all(line.reference != name for line in lines):
            of_table(lakehouse, reader)
            lines = taken_up(lakehouse.settings, ingest)
        versions = [each.versions[name] for each in in_force(lines, [name]) if each.since <= at]
        if versions[-1] != present:
            _add(lakehouse, ingest, TakenUp(name, present, at))


def _add(lakehouse: Lakehouse, ingest: Table, line: TakenUp) -> tuple[TakenUp, ...]:
    """Adds a line and returns all; a first line is not added if another process was faster."""
    path = layout.note(lakehouse.settings, ingest, "references.jsonl")
    with alone(path.with_suffix(".lock")):
        lines = taken_up(lakehouse.settings, ingest)
        first = all(each.reference != line.reference for each in lines)
        if first or line.since > EPOCH:
            Notes(path, _decoded).append(line)
    return taken_up(lakehouse.settings, ingest)


def _check_noted(path: Path, table: Table, last: Commit | None, lines: Sequence[TakenUp]) -> None:
    """Raises CommitError if versions that rows of the table's last commit saw are not among the lines."""
    noted = {(line.reference, line.version) for line in lines}
    seen = last.inputs.get(SEEN, {}) if last else {}
    if missing := [(n, v) for n, versions in seen.items() for v in versions if (n, v) not in noted]:
        name, version = missing[0]
        raise _lost(
            path,
            f"rows of {table.name} saw version {version} of {name}, and it has no line of that",
        )


def _lost(path: Path, what: str) -> CommitError:
    return CommitError(
        f"file={path}: it holds which versions of reference tables rows saw when they arrived, and lines of it are gone "
        f"({what}); restore it from a copy: without it rows would be computed with other versions than they were"
    )


_known: dict[Path, int] = {}  # how many lines each file had when this process read it last


@lru_cache(maxsize=64)
def _lines(path: Path, size: int) -> tuple[TakenUp, ...]:
    """Returns the lines, oldest first. Lines are only added, so the content of a file of that size does not change."""
    return tuple(reversed(list(Notes(path, _decoded).newest_first())))
