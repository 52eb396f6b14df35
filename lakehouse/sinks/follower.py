"""Brings a target from its position to the newest version of a table, one transaction a version.

It reads the versions from the table's log and files, without a JVM, whoever wrote them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse.declare.table import Table
from lakehouse.declare.targets import Corrections, Position, Sink, Target
from lakehouse.errors import CommitError, SinkError
from lakehouse.sinks import base, changes
from lakehouse.sinks.formats import encoding
from lakehouse.sinks.formats.encoded import Columns
from lakehouse.storage.delta import delta_log, python_years, small_commits, version_rows
from lakehouse.storage.disk import layout
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import published_position
from lakehouse.storage.versions import fork_guard
from lakehouse.storage.versions.read_holds import under_way

if TYPE_CHECKING:
    import pyarrow as pa

# versions without a change of rows (compaction) that the position may lag; after a crash they are read again
_UNCOMMITTED = 50
_NOTE = 10.0  # seconds between two notes for retention
_LOOK = 5.0  # seconds between two looks whether the log lacks a version that comes next


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a step: the version it went to, and how many rows of it were sent, held back or ignored."""

    version: int
    sent: int = 0
    held: int = 0
    ignored: int = 0


def changes_of(lakehouse: Lakehouse, table: Table, target: Target, version: int) -> Columns:
    """Returns the changes of one version. Raises CommitError if its log or its files do not have it any more."""
    went, came = version_rows.moved(lakehouse.path(table), version)
    return changes.difference(changes.ordered(went), changes.ordered(came), target.key)


def committed_at(path: Path, version: int) -> str:
    """Returns when a version was committed; empty if the log does not say any more."""
    return str(delta_log.written(path, version) or "")


class Follower:
    """The way of one table to one target."""

    def __init__(
        self,
        lakehouse: Lakehouse,
        table: Table,
        target: Target,
        going_on: Callable[[], None] = lambda: None,
    ) -> None:
        """`going_on` is called in the middle of long work; it may raise `Stopped`."""
        self.lakehouse, self.table, self.target = lakehouse, table, target
        self.going_on = going_on
        self.sink: Sink = target.sink(lakehouse.settings, table.name)
        self.sink.going_on = going_on
        self.position: Position | None = None
        self._named = f"target={target.name}, table={table.name}"
        self._path = lakehouse.path(table)
        self._committed = -1
        self._stamp = ""
        self._columns: pa.Schema | None = None  # that the sink was given
        self._checked: pa.Schema | None = None
        self._looked = 0.0
        self._noted = 0.0
        self._came_first = False  # before there was a table

    def begin(self) -> None:
        """Claims the target, and goes on from its position.

        Raises SinkError if the position is of another table, or of a version that the log does not lead on from.
        """
        fork_guard.check(self.lakehouse.settings, self.target.name)
        self.sink.open()
        self.position = position = self.sink.position()
        if position is None:
            self._came_first = not delta_log.exists(self._path)
            return
        self._committed = position.version
        identity = delta_log.exists(self._path) and small_commits.identity(self._path)
        if identity != position.table:
            raise SinkError(
                f"{self._named}, id={identity or 'none'}: the target holds version {position.version} of a table with the id "
                f"{position.table}; {self._remedy()}"
            )
        in_table = committed_at(self._path, position.version)
        if in_table and in_table != position.written:
            raise SinkError(
                f"{self._named}, version={position.version}: the target holds that of {position.written}, the table one of "
                f"{in_table}, so it was restored; {self._remedy()}"
            )
        self._check_columns(delta_log.latest(self._path))
        self._stamp = delta_log.stamp(self._path, position.version)
        self._check_log(position)

    def step(self) -> Step | None:
        """Goes on by one version; returns None if there is none yet.

        The first one is the newest, with all its rows, or the first of a table that was not there at `begin`. Raises
        CommitError, SinkError.
        """
        if self.position is None:
            return self._load() if delta_log.exists(self._path) else None
        position, version = self.position, self.position.version + 1
        if self._stamp and delta_log.stamp(self._path, position.version) not in ("", self._stamp):
            raise CommitError(
                f"table={self.table.name}, version={position.version}: it was made again while it was published"
            )
        stamp = delta_log.stamp(self._path, version)
        if not stamp:
            if time.monotonic() - self._looked > _LOOK:
                self._check_log(position)
            return None
        with under_way(self.lakehouse.settings):
            row_changes, disposal = self._planned(version)
        if row_changes and disposal == "hold":
            position = replace(position, held=(*position.held, version))
        position = replace(position, version=version, written=committed_at(self._path, version))
        if row_changes and disposal == "send":
            self._send(version, row_changes)
        if (row_changes and disposal != "ignore") or version - self._committed >= _UNCOMMITTED:
            self._commit(position)
        self.position, self._stamp = position, stamp
        counts = {"send": "sent", "hold": "held", "ignore": "ignored"}
        return Step(version, **{counts[disposal]: len(row_changes or ())})

    def end(self) -> None:
        """Commits how far it has come, and lets go of the target."""
        if self.position and self.position.version > self._committed:
            self._commit(self.position)
        if self.position:
            published_position.note(self.lakehouse.settings, self.target.name, self.position)
        self.sink.close()

    def behind(self) -> int:
        """Returns how many versions the table is ahead of the target."""
        return delta_log.latest(self._path) - (self.position.version if self.position else -1)

    def _check_columns(self, version: int) -> None:
        """Raises SinkError if the target cannot hold the columns of a version."""
        columns = version_rows.columns(self._path, version)
        if columns != self._checked:
            base.check_columns(self.table.name, self.target, columns)
            self._checked = columns

    def _load(self) -> Step:
        all_seen = self._came_first and delta_log.stamp(self._path, 0)
        version = 0 if all_seen else delta_log.latest(self._path)
        self._check_columns(version)
        identity = small_commits.identity(self._path)
        self._stamp = delta_log.stamp(self._path, version)
        with under_way(self.lakehouse.settings):
            rows = changes.ordered(version_rows.all_at(self._path, version))
        self._send(version, changes.difference(rows.slice(0, 0), rows, self.target.key))
        self._commit(Position(identity, version, committed_at(self._path, version)))
        return Step(version, sent=rows.num_rows)

    def _planned(self, version: int) -> tuple[Columns | None, Corrections]:
        """Returns the changes of a version, if there are any, and the way in which they are treated."""
        change = delta_log.change(self._path, version)
        if change is None:
            return None, "send"
        self._check_columns(version)
        try:
            row_changes = changes_of(self.lakehouse, self.table, self.target, version)
        except CommitError as err:
            raise CommitError(f"{err}; {self._remedy()}") from err
        return row_changes, changes.disposal(
            self.target.corrections,
            has_partitions=self.table.kind.has_partitions,
            by_stream=change.by_stream,
        )

    def _send(self, version: int, row_changes: Columns) -> None:
        where = f"{self._named}, version={version}"
        python_years.check(row_changes.rows, where, SinkError, encoding.FIX, self.target.key)
        columns = row_changes.rows.schema
        if columns != self._columns:
            self.sink.columns(columns)
            self._columns = columns
        self.sink.write(version, row_changes)

    def _commit(self, position: Position) -> None:
        self.sink.commit(position)
        self.position, self._committed = position, position.version
        if time.monotonic() - self._noted > _NOTE:
            published_position.note(self.lakehouse.settings, self.target.name, position)
            self._noted = time.monotonic()

    def _check_log(self, position: Position) -> None:
        """Raises CommitError if the next version is gone, or the table ends before the position."""
        self._looked = time.monotonic()
        latest, following = delta_log.latest(self._path), position.version + 1
        has_next = latest > position.version and delta_log.stamp(self._path, following)
        if latest != position.version and not has_next:
            raise CommitError(
                f"{self._named}, version={following}: the table's log ends at {latest} and does not have it; {self._remedy()}"
            )

    def _remedy(self) -> str:
        name = self.target.name
        if self.target.reads_back:
            return f"`lakehouse reconcile sink {name} --repair` sends what differs from the newest version"
        note = layout.published(self.lakehouse.settings, name)
        return (
            f"the actions of versions that are gone are unknown; remove {note} and the folder {note.with_suffix('')}, and the "
            "target begins as a new one"
        )
