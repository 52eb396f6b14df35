"""How far the rows of a commit of an ingest table had come in event time, read from the files that it added."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.declare.columns import ARRIVAL
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING
from lakehouse.storage.delta import delta_log, write_cache
from lakehouse.storage.disk.objects import source

_INSTANT = pa.timestamp("us", "UTC")


def of_files(table: Table, path: Path, files: Iterable[Mapping]) -> dict[tuple[str, str], datetime]:
    """Returns the latest event time of each value of the column `watermark_by` in files of the table, by topic and value.

    With a marker, that of marked rows; BEGINNING where none is marked. Nulls are no value.
    """
    chosen = (table.event_time, table.marker, table.watermark_by, ARRIVAL)
    columns = list(dict.fromkeys(filter(None, chosen)))
    latest: dict[tuple[str, str], datetime] = {}
    for file in (delta_log.data_file(path, named) for named in files):
        kept = write_cache.rows_of([file])
        read = pq.ParquetFile(source(file)).read(columns) if kept is None else kept.select(columns)
        rows = _plain(table, read)
        rows = rows.filter(pc.is_valid(rows["value"])).group_by(["topic", "value"])
        for row in rows.aggregate([("moment", "max")]).to_pylist():
            key, moment = (row["topic"], row["value"]), _utc(row["moment_max"])
            latest[key] = max(latest.get(key, moment), moment)
    return latest


def _plain(table: Table, rows: pa.Table) -> pa.Table:
    moment = rows[table.event_time].cast(_INSTANT)
    if table.marker:
        marked = pc.fill_null(rows[table.marker], False)
        moment = pc.if_else(marked, moment, pa.scalar(BEGINNING, _INSTANT))
    topic, value = pc.struct_field(rows[ARRIVAL], "topic"), rows[table.watermark_by]
    return pa.table({"topic": topic, "value": value.cast(pa.string()), "moment": moment})


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
