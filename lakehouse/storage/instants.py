"""Rows of data files by an instant that they have, read without Spark."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakehouse.declare.columns import ARRIVAL, ORIGIN
from lakehouse.ranges import Range


def since(column: str, instant: datetime) -> pc.Expression:
    """Whether a row's instant (a column, or a field of a struct by its path) is not before this one."""
    return _field(column) >= pa.scalar(instant)


def between(
    files: Sequence[Path],
    schema: pa.Schema,
    column: str,
    span: Range,
    columns: Sequence[str],
    most: int,
) -> pa.Table | None:
    """Some columns of the rows with an instant in the span; None if they are more than `most`.

    `schema`: of the table. Row groups whose statistics rule the span out are not read.
    """
    chosen = since(column, span.start) & (_field(column) < pa.scalar(span.end))
    rows = _dataset(files, schema).head(most + 1, columns=list(columns), filter=chosen)
    return rows if rows.num_rows <= most else None


def count_late(files: Sequence[Path], schema: pa.Schema, column: str, ttl: timedelta) -> int:
    """How many rows that a stream wrote were more than `ttl` behind the watermark when they arrived."""
    least = pc.subtract(_field(f"{ARRIVAL}.watermark"), pa.scalar(ttl, pa.duration("us")))
    late = (_field(column) < least) & (_field(ORIGIN) == pa.scalar("stream"))
    return _dataset(files, schema).count_rows(filter=late)


def _field(column: str) -> pc.Expression:
    return pc.field(*column.split("."))


def _dataset(files: Sequence[Path], schema: pa.Schema) -> ds.Dataset:
    """A file that lacks a column, as those before it was added, has null there."""
    return ds.dataset([str(file) for file in files], schema=schema, format="parquet")
