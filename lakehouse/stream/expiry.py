"""Which rows of its inputs count for a keyed table with `ttl`, and which cease to: each does when the frontier is `ttl` past it.

Files are chosen by their statistics, and few lie where rows expire, so this takes no job of Spark's.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.declare.columns import ARRIVAL, ORIGIN
from lakehouse.declare.table import Table
from lakehouse.ranges import EPOCH, Range
from lakehouse.storage import delta_log, instants, log_state
from lakehouse.storage.commit_log import frontier
from lakehouse.storage.session import Session
from lakehouse.stream.table_steps import Moved
from lakehouse.transform import plan

_INSTANT = timedelta(microseconds=1)


class Expiry:
    """The inputs with event time of one table."""

    def __init__(self, session: Session, table: Table) -> None:
        self.session, self.ttl = session, table.ttl
        self.inputs = {each.name: each for each in session.catalog.timed_inputs(table)}

    def between(self, start: datetime, ahead: datetime) -> Range | None:
        """The event times of the rows that count at the frontier `start`, and do not at `ahead`."""
        return Range(start - self.ttl, ahead - self.ttl) if ahead > start else None

    def files(self, name: str, version: int, since: datetime) -> list[Path]:
        """The files of an input that may have a row that counts."""
        return [path for path, held in self._files(name, version) if held.end > since]

    def counting(self, name: str, rows: pa.Table, since: datetime) -> pa.Table:
        """The rows of an input that count."""
        column, shift = self._time(name)
        return rows.filter(instants.since(column, since + shift))

    def expired(
        self, name: str, version: int, span: Range, columns: Iterable[str], most: int
    ) -> pa.Table | None:
        """These columns of the rows of an input in the span; None if they are more than `most`."""
        column, shift = self._time(name)
        stored = Range(span.start + shift, span.end + shift)
        files = [path for path, held in self._files(name, version) if held.overlaps(stored)]
        schema = self._schema(name, columns)
        return instants.between(files, schema, column, stored, list(columns), most)

    def count_late(self, moved: Mapping[str, Moved]) -> int:
        """How many rows came that were past their `ttl` by the watermark in force: they never count."""
        return sum(self._count_late(name, moved[name]) for name in self.inputs)

    def _count_late(self, name: str, moved: Moved) -> int:
        table = self.inputs[name]
        # results of windows are never late; of other rows none is, unless its file reaches back so far
        least = (frontier(self.session.settings, table) or EPOCH) - self.ttl
        came = set(moved.files) if not table.window else set()
        late = [
            path
            for path, held in (self._files(name, moved.until) if came else ())
            if path in came and held.start < least
        ]
        column, _ = self._time(name)
        return instants.count_late(late, self._schema(name, ()), column, self.ttl) if late else 0

    def _files(self, name: str, version: int) -> Iterable[tuple[Path, Range]]:
        """The files of an input, each with the event times that it has at most."""
        if version < 0:
            return
        path = self.session.path(self.inputs[name])
        column = self.session.catalog.time_statistic(self.inputs[name])
        for file in log_state.files_at(path, version):
            yield delta_log.data_file(path, file), delta_log.span_of(file, column)

    def _time(self, name: str) -> tuple[str, timedelta]:
        """The column that places stored rows in time, and how far before it that is: of a window, just before its end."""
        table = self.inputs[name]
        return self.session.catalog.time_statistic(table), _INSTANT if table.window else timedelta()

    def _schema(self, name: str, columns: Iterable[str]) -> pa.Schema:
        column, _ = self._time(name)
        needed = {*columns, column.partition(".")[0], ARRIVAL, ORIGIN}
        stored = plan.stored_schema(self.session, self.inputs[name])
        chosen = StructType([field for field in stored if field.name in needed])
        return to_arrow_schema(chosen, timezone="UTC")
