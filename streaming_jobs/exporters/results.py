"""The results that tables show: the columns declared as `metrics`, of the window that closed last.

They are read from the files of the one Delta commit that closed it, so it costs the same however large the table is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import chain, takewhile
from typing import Any

from lakehouse.declare.columns import WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.ranges import BEGINNING
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log, delta_tables
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit


@dataclass(frozen=True, slots=True)
class LastWindow:
    """The window that closed last, [.., end): of each of its rows the values of the table's keys and of its metrics."""

    end: datetime
    rows: tuple[tuple[tuple[str, ...], tuple[float | None, ...]], ...]


class LastWindows:
    """The last window of each table, read again only when the stream has written another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # up to which commit it is known
        self._known: dict[str, tuple[datetime, LastWindow | None]] = {}

    def of(self, table: Table) -> LastWindow | None:
        """Returns None before the first window has closed. Raises DeclarationError if `metrics` names no column of numbers."""
        seen, window = self._known.get(table.name, (BEGINNING, None))
        newer = takewhile(lambda c: c.at > seen, CommitLog(self._settings, table).by_stream())
        if (last := next(newer, None)) is None:
            return window
        if (wrote := next((c for c in chain([last], newer) if c.written), None)) is not None:
            window = _read(self._settings, table, wrote) or window
        self._known[table.name] = last.at, window
        return window


def _read(settings: Settings, table: Table, commit: Commit) -> LastWindow | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    path = table_path(settings, table)
    moved = delta_log.moved(path, commit.version)
    if moved is None:  # cut since
        return None
    files = [delta_log.data_file(path, file) for kind, file in moved if kind == "add"]
    if delta_log.missing(files):  # compacted since, and vacuumed
        return None
    stored = delta_tables.rows_of(files)
    if unknown := [name for name in table.metrics if name not in stored.schema.names]:
        raise DeclarationError(
            f"table={table.name}, metrics={unknown[0]!r}: it has no such column; one of {', '.join(stored.schema.names)}"
        )
    # a window closes for all of its keys in one micro-batch, which may close several
    rows = stored.to_table([WINDOW, *table.keys, *table.metrics])
    ends = pc.struct_field(rows[WINDOW], "end").cast(pa.timestamp("us", "UTC"))
    last = rows.filter(pc.equal(ends, pc.max(ends))).to_pylist()
    return LastWindow(
        pc.max(ends).as_py(), tuple((_keys(table, row), _values(table, row)) for row in last)
    )


def _keys(table: Table, row: Mapping[str, object]) -> tuple[str, ...]:
    return tuple("" if row[name] is None else str(row[name]) for name in table.keys)


def _values(table: Table, row: Mapping[str, Any]) -> tuple[float | None, ...]:
    for name in table.metrics:
        if not isinstance(row[name], int | float | Decimal | None):
            raise DeclarationError(
                f"table={table.name}, metrics={name!r}: a metric is a number, and this is {type(row[name]).__name__}; "
                "name a column of numbers"
            )
    return tuple(None if row[name] is None else float(row[name]) for name in table.metrics)
