"""Reference tables of a pipeline: filled when its job starts, and refreshed while it runs, in a thread of its own.

A table whose files are gone, or do not fit, keeps its rows, and its status says so.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from pyspark import InheritableThread

from lakehouse.batch import reference_tables
from lakehouse.declare.table import Table
from lakehouse.ranges import text
from lakehouse.storage.delta import delta_log
from lakehouse.storage.session import Session
from streaming_jobs import progress
from streaming_jobs.progress import ReferenceStatus
from streaming_jobs.queries import cause

_log = logging.getLogger(__name__)

_LOOK = 0.5  # seconds between two looks for a table that is due
_STOP = 30.0  # seconds for a refresh under way to end


class References:
    """The reference tables of a job. `check` is called before one is computed, and may refuse to go on."""

    def __init__(self, session: Session, tables: list[Table], check: Callable[[], None]) -> None:
        self.session, self.check = session, check
        self.tables = [t for t in tables if t.kind.is_reference]
        self.refreshed = [t for t in self.tables if t.refresh]
        self._status = {t.name: ReferenceStatus(t.name) for t in self.refreshed}
        self._due: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread = InheritableThread(target=self._go_on, name="references", daemon=True)

    @property
    def status(self) -> tuple[ReferenceStatus, ...]:
        return tuple(self._status.values())

    def fill(self) -> None:
        """Brings all of them up to date. Raises the error of a table that has no rows yet, or is not refreshed."""
        for table in self.tables:
            if table.refresh and delta_log.latest(self.session.path(table)) > 0:
                self._refresh(table)
            else:
                reference_tables.refresh(self.session, table)
                self._note(table)

    def start(self) -> None:
        if self.refreshed:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP)

    def _go_on(self) -> None:
        while not self._stopping.wait(_LOOK):
            for table in self.refreshed:
                if time.monotonic() >= self._due[table.name] and not self._stopping.is_set():
                    self._refresh(table)

    def _refresh(self, table: Table) -> None:
        try:
            self.check()
            commit = reference_tables.refresh(self.session, table)
        except Exception as err:  # of whatever kind: the streams go on with what there is
            self._failed(table, cause(str(err)))
            return
        if commit:
            _log.info(
                f"table={table.name}: refreshed; rows that arrive now see version {commit.version}"
            )
        self._note(table)

    def _failed(self, table: Table, error: str) -> None:
        before = self._status[table.name]
        if error != before.error:
            _log.warning(
                f"table={table.name}: it could not be refreshed, so its rows stay; {error}"
            )
        self._schedule(table, replace(before, error=error))

    def _note(self, table: Table) -> None:
        if table.refresh:
            self._schedule(table, ReferenceStatus(table.name, looked=progress.now()))

    def _schedule(self, table: Table, status: ReferenceStatus) -> None:
        path = self.session.path(table)
        version = delta_log.latest(path)
        made = delta_log.written(path, version)
        self._status[table.name] = replace(status, version=version, made=text(made) if made else "")
        self._due[table.name] = time.monotonic() + table.refresh.total_seconds()
