"""How far the rows of a commit of an ingest table had come in event time, read from the files that it added."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.declare.columns import ARRIVAL
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING
from lakehouse.storage.delta import delta_log, write_cache

_INSTANT = pa.timestamp("us", "UTC")


@dataclass(slots=True)
class LatestTimes:
    """The latest event time of each partition of a topic, and of each value in a topic of the column `watermark_by`.

    With a marker, that of marked rows; BEGINNING where none is marked. Nulls are no value.
    """

    partitions: dict[tuple[str, int], datetime] = field(default_factory=dict)
    values: dict[tuple[str, str], datetime] = field(default_factory=dict)
    at: datetime | None = None  # when the rows arrived


def of_commit(table: Table, path: Path, actions: Iterable[Mapping]) -> LatestTimes:
    """Of the rows that came with these actions of the table's log."""
    found = LatestTimes()
    for rows in _rows(table, path, actions):
        if rows.num_rows:
            found.at = _utc(rows["time"][0].as_py())
        _add(found.partitions, rows, "partition")
        if table.watermark_by:
            _add(found.values, rows.filter(pc.is_valid(rows["value"])), "value")
    return found


def _add(latest: dict, rows: pa.Table, column: str) -> None:
    for row in rows.group_by(["topic", column]).aggregate([("moment", "max")]).to_pylist():
        key, moment = (row["topic"], row[column]), _utc(row["moment_max"])
        latest[key] = max(latest.get(key, moment), moment)


def _rows(table: Table, path: Path, actions: Iterable[Mapping]) -> Iterator[pa.Table]:
    """Of each file the columns that are asked for, and nothing else."""
    chosen = (table.event_time, table.marker, table.watermark_by, ARRIVAL)
    columns = list(dict.fromkeys(filter(None, chosen)))
    for action in actions:
        if "add" in action:
            file = delta_log.data_file(path, action["add"])
            kept = write_cache.rows_of([file])
            yield _plain(
                table, pq.ParquetFile(file).read(columns) if kept is None else kept.select(columns)
            )


def _plain(table: Table, rows: pa.Table) -> pa.Table:
    plain = {name: pc.struct_field(rows[ARRIVAL], name) for name in ("topic", "partition", "time")}
    moment = rows[table.event_time].cast(_INSTANT)
    if table.marker:
        marked = pc.fill_null(rows[table.marker], False)
        moment = pc.if_else(marked, moment, pa.scalar(BEGINNING, _INSTANT))
    if table.watermark_by:
        plain["value"] = rows[table.watermark_by].cast(pa.string())
    return pa.table({**plain, "moment": moment})


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
