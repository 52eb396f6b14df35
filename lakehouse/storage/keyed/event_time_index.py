"""Rows of data files by an instant that they have, read without Spark."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from lakehouse.declare.columns import ARRIVAL, ORIGIN
from lakehouse.ranges import Range
from lakehouse.storage.disk.objects import dataset, source


def within(column: str, span: Range, known: datetime | None = None) -> pc.Expression:
    """Returns the condition that a row's instant (a column, or a field of a struct by its path) is in the span.

    `known`: the row must also have arrived under a watermark before that instant.
    """
    chosen = (_field(column) >= pa.scalar(span.start)) & (_field(column) < pa.scalar(span.end))
    return chosen & (_watermark() < pa.scalar(known)) if known else chosen


def entering(column: str, span: Range, late: datetime | None) -> pc.Expression:
    """Returns the condition that a row is in the span, or before its end and arrived under a watermark from `late` on."""
    if late is None:
        return within(column, span)
    new = (_field(column) >= pa.scalar(span.start)) | (_watermark() >= pa.scalar(late))
    return (_field(column) < pa.scalar(span.end)) & new


def chosen(
    files: Sequence[Path],
    schema: pa.Schema,
    conditions: Sequence[pc.Expression],
    columns: Sequence[str],
    most: int,
) -> pa.Table | None:
    """Returns some columns of the rows for which one of the conditions holds; None if they are more than `most`.

    `schema`: of the table. Row groups whose statistics rule out such rows are not read.
    """
    rows = _dataset(files, schema).head(
        most + 1, columns=list(columns), filter=reduce(or_, conditions)
    )
    return rows if rows.num_rows <= most else None


def last_watermark(file: Path) -> datetime:
    """Returns the last watermark under which a row of the file arrived, by its statistics; the end of time without these."""
    metadata = pq.read_metadata(source(file))
    latest = datetime(1, 1, 1, tzinfo=UTC)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = {
            each.path_in_schema: each for each in map(group.column, range(group.num_columns))
        }
        statistics = columns[f"{ARRIVAL}.watermark"].statistics
        if statistics is None or not statistics.has_min_max:
            return datetime(9999, 12, 31, tzinfo=UTC)
        latest = max(latest, statistics.max)
    return latest


def count_late(files: Sequence[Path], schema: pa.Schema, column: str, by: timedelta) -> int:
    """Returns the number of rows written by a stream that were more than `by` earlier than the watermark on arrival."""
    least = pc.subtract(_watermark(), pa.scalar(by, pa.duration("us")))
    late = (_field(column) < least) & (_field(ORIGIN) == pa.scalar("stream"))
    return _dataset(files, schema).count_rows(filter=late)


def _watermark() -> pc.Expression:
    return _field(f"{ARRIVAL}.watermark")


def _field(column: str) -> pc.Expression:
    return pc.field(*column.split("."))


def _dataset(files: Sequence[Path], schema: pa.Schema) -> ds.Dataset:
    """Returns the files as a dataset. A file from before a column was added has null there."""
    return dataset(files, schema)
