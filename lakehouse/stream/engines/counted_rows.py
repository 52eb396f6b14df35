"""The rows of its inputs that a step counts (`transform.counting`), and those that began or ceased to as the frontier went on.

Files are chosen by their statistics, and few lie where rows begin or cease, so this takes no job of Spark's.
Rows that wait for the frontier are kept nowhere: they are read from their files when it has passed them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.declare.columns import ARRIVAL, ORIGIN
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING, Range
from lakehouse.storage.delta import delta_log, log_state
from lakehouse.storage.keyed import event_time_index
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.session import Session
from lakehouse.stream.engines.table_steps import Moved
from lakehouse.transform import counting, lateness, plan


@dataclass(frozen=True, slots=True)
class Turn:
    """The event times of the rows that count before a step and after it."""

    before: Range
    after: Range


@dataclass(slots=True)
class _File:
    """The bounds of a file's event times, and the last watermark under which a row of it arrived, once that is known."""

    held: Range
    arrived: datetime | None = None


class CountedRows:
    """The rows of one table's inputs with event time, and which of them count."""

    def __init__(self, session: Session, table: Table) -> None:
        self.session, self.table = session, table
        self.inputs = {each.name: each for each in session.catalog.timed_inputs(table)}
        self._known: dict[str, dict[Path, _File]] = {name: {} for name in self.inputs}

    def turn(self, start: datetime, ahead: datetime) -> Turn | None:
        """Returns what a step changes by the frontier alone; None if the frontier stands still."""
        before, after = (counting.span_of(self.table, each) for each in (start, ahead))
        return Turn(before, after) if before and after and ahead > start else None

    def files(self, name: str, version: int, span: Range) -> list[Path]:
        """Returns the files of an input that may have a row that counts."""
        stored = self._stored(name, span)
        return [path for path, file in self._files(name, version) if file.held.overlaps(stored)]

    def narrowed(self, name: str, rows: pa.Table, span: Range) -> pa.Table:
        """Returns the rows of an input that count."""
        column = self._column(name)
        known = counting.arrived_before(span) if self._waits(name) else None
        return rows.filter(event_time_index.within(column, self._stored(name, span), known))

    def moved(self, name: str, moved: Moved, span: Range) -> list[Path]:
        """Returns the files, of those that came or went, that may have a row that counts or did before."""
        if name not in self.inputs or not self.table.final_rows or not moved.files:
            return list(moved.files)
        end = self._stored(name, span).end
        ahead = {path for path, file in self._files(name, moved.until) if file.held.start >= end}
        return [file for file in moved.files if file not in ahead]

    def turned(
        self, name: str, version: int, turn: Turn, columns: Iterable[str], most: int
    ) -> pa.Table | None:
        """Returns these columns of an input's rows that count only before or only after the turn, and maybe of others; None if
        they are more than `most`."""
        column = self._column(name)
        before, after = (self._stored(name, span) for span in (turn.before, turn.after))
        leaving = Range(before.start, after.start) if self.table.ttl else None
        entering = Range(before.end, after.end) if self.table.final_rows else None
        late = counting.arrived_before(turn.before) if self._waits(name) else None
        files = [
            path
            for path, file in self._files(name, version)
            if (leaving and file.held.overlaps(leaving))
            or (entering and self._may_enter(path, file, entering, late))
        ]
        names = list(columns) or [column.partition(".")[0]]
        schema = self._schema(name, names)
        chosen = [event_time_index.within(column, leaving)] if leaving else []
        chosen += [event_time_index.entering(column, entering, late)] if entering else []
        return event_time_index.chosen(files, schema, chosen, names, most)

    def _may_enter(self, path: Path, file: _File, span: Range, late: datetime | None) -> bool:
        if late is None or file.held.start >= span.end or file.held.end > span.start:
            return file.held.overlaps(span)
        if file.arrived is None:
            file.arrived = event_time_index.last_watermark(path)
        return file.arrived >= late

    def count_late(self, moved: Mapping[str, Moved]) -> int:
        """Returns how many rows came that were late by the watermark in force (`lateness.is_late_by`)."""
        return sum(self._count_late(name, moved[name]) for name in self.inputs)

    def _count_late(self, name: str, moved: Moved) -> int:
        table, by = self.inputs[name], lateness.is_late_by(self.table)
        # results of windows are never late; other rows can be late only if their file reaches back so far
        least = (frontier(self.session.settings, table) or BEGINNING) - by
        came = set(moved.files) if not table.window else set()
        late = [
            path
            for path, file in (self._files(name, moved.until) if came else ())
            if path in came and file.held.start < least
        ]
        column = self._column(name)
        return event_time_index.count_late(late, self._schema(name, ()), column, by) if late else 0

    def _files(self, name: str, version: int) -> Iterable[tuple[Path, _File]]:
        """Returns the files of an input at a version."""
        if version < 0:
            return ()
        path = self.session.path(self.inputs[name])
        column = self.session.catalog.time_statistic(self.inputs[name])
        known = self._known[name]
        present: dict[Path, _File] = {}
        for file in log_state.files_at(path, version):
            at = delta_log.data_file(path, file)
            present[at] = known.get(at) or _File(delta_log.span_of(file, column))
        self._known[name] = present
        return present.items()

    def _waits(self, name: str) -> bool:
        """Returns True if a late row of the input waits for the frontier."""
        return self.table.final_rows and not self.inputs[name].window

    def _column(self, name: str) -> str:
        """Returns the column that places stored rows in time."""
        return self.session.catalog.time_statistic(self.inputs[name])

    def _stored(self, name: str, span: Range) -> Range:
        return self.session.stored_span(self.inputs[name], span)

    def _schema(self, name: str, columns: Iterable[str]) -> pa.Schema:
        column = self._column(name)
        needed = {*columns, column.partition(".")[0], ARRIVAL, ORIGIN}
        stored = plan.plan_of(self.session, self.inputs[name]).schema
        chosen = StructType([field for field in stored if field.name in needed])
        return to_arrow_schema(chosen, timezone="UTC")
