"""The raw records of an ingest table's sources, from offsets to offsets."""

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame

from lakehouse.declare.sources import DeltaSource, FolderSource, KafkaSource, RecordSource
from lakehouse.declare.table import Table
from lakehouse.storage.file_register import Register
from lakehouse.storage.foreign_records import PARTITION, RecordReader
from lakehouse.storage.session import Session
from lakehouse.stream.offsets import Offsets
from lakehouse.transform import decode

HELD = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
    ]
)
"""Records of a topic as they are held in memory."""
_EVERY = 1 << 62  # bytes


def between(
    session: Session,
    table: Table,
    source: RecordSource,
    begins: Mapping[str, int] | None,
    ends: Offsets,
) -> DataFrame | pa.Table:
    """The records of a source from the offsets of its partitions, or the first, up to those of `ends`."""
    if isinstance(source, KafkaSource):
        return decode.topic_rows(session.spark, session.settings, source, begins, ends)
    begin, end = (begins or {}).get(PARTITION, 0), ends[source.topic][PARTITION]
    reader = RecordReader(file_source(source), Register(session.settings, table))
    try:
        rows = reader.read(begin, end, _EVERY)
    finally:
        reader.close()
    assert rows.num_rows == end - begin, "a step ends where the columns of its rows change"
    return held(session, rows)


def file_source(source: RecordSource) -> FolderSource | DeltaSource:
    """A source that has files."""
    assert isinstance(source, FolderSource | DeltaSource), source
    return source


def file_sources(sources: Iterable[RecordSource]) -> list[FolderSource | DeltaSource]:
    """Those of them that have files: of an ingest table one at most."""
    return [each for each in sources if isinstance(each, FolderSource | DeltaSource)]


def held(session: Session, found: pa.Table) -> DataFrame | pa.Table:
    """Records that are in memory, each with a value: rows as JSON."""
    return decode.row_records(session.spark, found) if "row" in found.column_names else found
