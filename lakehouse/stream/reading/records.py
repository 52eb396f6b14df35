"""Records that are in memory, before they are decoded."""

from collections.abc import Iterable
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakehouse.declare.inputs.sources import FilesSource, RecordSource
from lakehouse.storage.foreign.foreign_records import RECORDS
from lakehouse.storage.session import Session
from lakehouse.transform.decoding import decode

HELD = pa.schema([*list(RECORDS)[:-1], ("timestamp", pa.timestamp("ms", "UTC"))])
"""Records of a topic as they are held in memory."""
OF_HEADERS = pa.field(
    "headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
"""The further field of these records, if their headers are read."""


def dated(rows: pa.Table, at: datetime) -> pa.Table:
    """Returns the records, those without a timestamp with that of their step, `at`: so each run of it has the same."""
    if not rows["timestamp"].null_count:
        return rows
    number = rows.schema.get_field_index("timestamp")
    field = rows.schema.field(number)
    filled = pc.fill_null(rows["timestamp"], pa.scalar(at, field.type))
    return rows.set_column(number, field, filled)


def file_sources(sources: Iterable[RecordSource]) -> list[FilesSource]:
    """Returns the sources that have files: an ingest table has one at most."""
    return [each for each in sources if isinstance(each, FilesSource)]


def held(session: Session, found: pa.Table) -> DataFrame | pa.Table:
    """Returns records that are in memory, each with a value: rows as JSON."""
    return decode.row_records(session.spark, found) if "row" in found.column_names else found
