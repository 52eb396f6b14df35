"""The early results of a job's tables. Nothing depends on them, so their failures are reported, and final rows go on."""

import logging
from collections.abc import Callable
from functools import partial

from pyspark.sql.streaming import StreamingQuery

from lakehouse.declare.table import Table
from lakehouse.storage.session import Session
from lakehouse.stream.engines import early_results
from streaming_jobs.queries import in_a_line

_log = logging.getLogger(__name__)


class Previews:
    """The queries that refresh the early results of these tables. `report` gets each failure, in a line."""

    def __init__(
        self, session: Session, tables: list[Table], report: Callable[[str], None]
    ) -> None:
        self.session, self.report = session, report
        self.tables = [t for t in tables if t.early_results and session.settings.early_results]
        self.queries: dict[str, StreamingQuery] = {}

    def start(self) -> None:
        for table in self.tables:
            self._tried(table, partial(self._begin, table))

    def check(self) -> None:
        for table in self.tables:
            query = self.queries.get(table.name)
            if query and not query.isActive and (error := query.exception()) is not None:
                del self.queries[table.name]
                self._stands_still(table, error)

    def stop(self) -> None:
        for query in self.queries.values():
            query.stop()

    def settle(self) -> None:
        """Refreshes all once more, after the job's queries have ended."""
        for table in self.tables:
            self._tried(table, partial(early_results.settle, self.session, table))

    def _begin(self, table: Table) -> None:
        self.queries[table.name] = early_results.start(self.session, table)

    def _tried(self, table: Table, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as err:  # of whatever kind: no final row depends on it
            self._stands_still(table, err)

    def _stands_still(self, table: Table, error: Exception) -> None:
        message = (
            f"table={table.name}__early: early results stand still until the job is started again; "
            f"{in_a_line(error)}"
        )
        _log.warning(message)
        self.report(message)
