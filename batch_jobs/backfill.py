"""The backfill: replaces a closed range of one table by its bounded run. `python -m batch_jobs.backfill TABLE --start --end`"""

import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from batch_jobs.publisher import publishing
from lakehouse import bounded, event_time
from lakehouse.catalog import Catalog
from lakehouse.errors import RangeError
from lakehouse.event_time import PARTITION, Range
from lakehouse.frontier import Commit
from lakehouse.lake import Lake
from lakehouse.table import Table

_STATISTICS = timedelta(milliseconds=1)  # Delta cuts the greatest timestamp of a file to milliseconds


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a backfill would read, replace and leave behind, by Delta's statistics alone.

    The input is what the range's context touches, whole files of it: a bound for the rows that will be read.
    """

    table: str
    start: datetime
    end: datetime
    frontier: datetime
    partitions: tuple[str, ...]
    rows_replaced: int
    input: str
    context_start: datetime
    context_end: datetime
    input_rows: int
    input_files: int
    input_bytes: int
    downstream: tuple[str, ...]  # derived tables whose ranges are PENDING until they follow


def run(lake: Lake, table_name: str, start: datetime | None = None, end: datetime | None = None) -> Commit | None:
    """Replaces `[start, end)` of a table in one Delta commit, or rebuilds a snapshot, which has no range.

    None if a snapshot has its rows already. Raises RangeError, UnknownTable, JobError (another process is at it).
    """
    table = lake.catalog.table(table_name)
    span = _range(lake.catalog, table, start, end)
    with publishing(lake.settings, table):
        return bounded.backfill(lake, table, span) if span else bounded.rebuild(lake, table)


def plan(lake: Lake, table_name: str, start: datetime | None = None, end: datetime | None = None) -> Backfill | None:
    """What `run` would do, refusing what it would refuse; changes nothing and needs no session. None for a snapshot."""
    table = lake.catalog.table(table_name)
    span = _range(lake.catalog, table, start, end)
    if span is None:
        return None
    ahead = bounded.check_range(lake, table, span, whole_partitions=True)
    driving = lake.catalog.driving_input(table)
    context = event_time.context(span, table.window, table.grain)
    partitions = tuple(span.partitions(table.grain))
    files = _files(lake.path(driving), lake.catalog.event_time(driving), context)
    stored = _statistics(lake.path(table))
    return Backfill(
        table=table.name, start=span.start, end=span.end, frontier=ahead, partitions=partitions,
        rows_replaced=sum(f["num_records"] or 0 for f in stored if f[f"partition.{PARTITION}"] in partitions),
        input=driving.name, context_start=context.start, context_end=context.end,
        input_rows=sum(f["num_records"] or 0 for f in files), input_files=len(files),
        input_bytes=sum(f["size_bytes"] for f in files), downstream=_downstream(lake.catalog, table),
    )  # fmt: skip


def _range(catalog: Catalog, table: Table, start: datetime | None, end: datetime | None) -> Range | None:
    if start and end:
        return Range(start, end)
    if start or end or catalog.kind(table) != "snapshot":
        raise RangeError(f"table={table.name}: a backfill needs both ends of its range; give --start and --end")
    return None


def _files(path: Path, column: str, span: Range) -> list[dict]:
    """The files whose statistics do not rule out that they hold rows of `span`."""

    def may_hold(file: dict) -> bool:
        least, greatest = file.get(f"min.{column}"), file.get(f"max.{column}")
        return (least is None or least < span.end) and (greatest is None or greatest + _STATISTICS >= span.start)

    return [file for file in _statistics(path) if may_hold(file)]


def _statistics(path: Path) -> list[dict]:
    import pyarrow as pa
    from deltalake import DeltaTable

    return pa.table(DeltaTable(str(path)).get_add_actions(flatten=True)).to_pylist()


def _downstream(catalog: Catalog, table: Table) -> tuple[str, ...]:
    reached = {table.name}
    for each in catalog:  # in order: inputs come first
        if reached & set(each.inputs):
            reached.add(each.name)
    return tuple(t.name for t in catalog if t.name in reached - {table.name})


if __name__ == "__main__":
    from batch_jobs.commands import main

    main("backfill", sys.argv[1:])
