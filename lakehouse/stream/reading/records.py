"""The raw records of an ingest table's sources, from offsets to offsets."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.declare.inputs.own_sources import PythonSource
from lakehouse.declare.inputs.sources import FilesSource, RecordSource
from lakehouse.declare.table import Table
from lakehouse.runtime.own_source import OwnReader
from lakehouse.storage.foreign import foreign_sources
from lakehouse.storage.foreign.file_register import Register
from lakehouse.storage.foreign.foreign_files import Gone
from lakehouse.storage.foreign.foreign_records import PARTITION, RECORDS, RecordReader
from lakehouse.storage.session import Session
from lakehouse.stream.reading.offsets import Offsets, known
from lakehouse.transform.decoding import decode

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
OF_HEADERS = pa.field(
    "headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
"""What they have besides, if their headers are read."""
_EVERY = 1 << 62  # bytes


def between(
    session: Session,
    table: Table,
    source: RecordSource,
    begins: Mapping[str, int] | None,
    ends: Offsets,
    at: datetime | None = None,
) -> DataFrame | pa.Table:
    """The records of a source from the offsets of its partitions, or the first, up to those of `ends`.

    `at`: the time of the step that had read them.
    """
    if isinstance(source, KafkaSource):
        return decode.topic_rows(session.spark, session.settings, source, begins, ends)
    if isinstance(source, PythonSource):
        return _of_own(source, begins or {}, ends[source.address], at)
    begin, end = (begins or {}).get(PARTITION, 0), ends[source.address][PARTITION]
    there = list(_not_lost(session, table, source, begin, end))
    return held(session, _of_files(session, table, file_source(source), there))


def _not_lost(
    session: Session, table: Table, source: RecordSource, begin: int, end: int
) -> Iterator[tuple[int, int]]:
    """What of a range of records nobody has accepted to be lost."""
    gaps = [g for g in known(session.settings, table).gaps if g.topic == source.address]
    for gap in sorted(gaps, key=lambda gap: gap.since):
        if begin < min(gap.since, end):
            yield begin, min(gap.since, end)
        begin = max(begin, gap.until)
    if begin < end:
        yield begin, end


def _of_files(
    session: Session,
    table: Table,
    source: FilesSource,
    ranges: list[tuple[int, int]],
) -> pa.Table:
    """The records of these ranges, also of files that have another name since. Raises SourceError."""
    files = foreign_sources.files_of(source, Register(session.settings, table))

    def read() -> pa.Table:
        with closing(RecordReader(files)) as reader:
            pieces = [reader.read(since, until, _EVERY) for since, until in ranges]
        return pa.concat_tables(pieces) if pieces else RECORDS.empty_table()

    try:
        rows = read()
    except Gone:
        if not files.follow_renames():
            raise
        rows = read()
    count = sum(until - since for since, until in ranges)
    assert rows.num_rows == count, "a step ends where the columns of its rows change"
    return rows


def _of_own(
    source: PythonSource, begins: Mapping[str, int], ends: Mapping[str, int], at: datetime | None
) -> pa.Table:
    with closing(OwnReader(source)) as reader:
        first = begins if ends.keys() <= begins.keys() else {**reader.begins(ends), **begins}
        pieces = [reader.table(p, first[p], end)[0] for p, end in ends.items() if first[p] < end]
    rows = pa.concat_tables([RECORDS.empty_table(), *pieces])
    return dated(rows, at) if at else rows


def dated(rows: pa.Table, at: datetime) -> pa.Table:
    """Records of which those without a timestamp have this one: that of their step, so that each run of it has the same."""
    number = rows.schema.get_field_index("timestamp")
    field = rows.schema.field(number)
    filled = pc.fill_null(rows["timestamp"], pa.scalar(at, field.type))
    return rows.set_column(number, field, filled)


def own_source(sources: Iterable[RecordSource]) -> PythonSource:
    """The source of one's own among them: of an ingest table that reads one, the only one."""
    (source,) = sources
    assert isinstance(source, PythonSource), source
    return source


def file_source(source: RecordSource) -> FilesSource:
    """A source that has files."""
    assert isinstance(source, FilesSource), source
    return source


def file_sources(sources: Iterable[RecordSource]) -> list[FilesSource]:
    """Those of them that have files: of an ingest table one at most."""
    return [each for each in sources if isinstance(each, FilesSource)]


def held(session: Session, found: pa.Table) -> DataFrame | pa.Table:
    """Records that are in memory, each with a value: rows as JSON."""
    return decode.row_records(session.spark, found) if "row" in found.column_names else found
