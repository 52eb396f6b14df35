"""Makes a table, its quarantine and its early results as its plan needs them, before anything is written to them."""

import logging
from pathlib import Path
from typing import cast

from pyspark.sql.types import StructField, StructType

from lakehouse.declare.columns import ORIGIN, PARTITION, QUARANTINE, WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.storage import delta_log
from lakehouse.storage.lake import Lake
from lakehouse.storage.row_keys import KEY
from lakehouse.transform import plan

_log = logging.getLogger(__name__)

_CHECKPOINTS = 50  # commits from one of Delta's checkpoints to the next
_PROPERTIES = {
    "delta.enableDeletionVectors": "false",  # pyarrow, by which side tables are read, refuses them
    "delta.checkpointInterval": str(
        _CHECKPOINTS
    ),  # the default, 10, would be one every few seconds
    # each checkpoint names all files removed within it, by compaction one a micro-batch, and each
    # reader reads it; how long they stay is by what is on disk (`maintenance`)
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
}
# what a step replaces is marked (`storage.keyed_files`)
_KEYED = _PROPERTIES | {"delta.enableDeletionVectors": "true"}
_PASSING = (
    _PROPERTIES
    | {  # replaced every second or so; its files go by what the log names (`tidy`)
        "delta.logRetentionDuration": "interval 1 hour",
        "delta.deletedFileRetentionDuration": "interval 1 day",
    }
)


def create(lake: Lake, table: Table) -> None:
    """Makes the table and its quarantine if they are not there.

    Raises DeclarationError if the columns are others.

    A function by which stream and batch may differ is refused here, before it has run.
    """
    declared = plan.stored_schema(lake, table)
    plan.check(lake, table)
    partitioned = lake.catalog.has_quarantine(table)
    if partitioned:
        _say_if_gone(lake, table)
    _create(
        lake.path(table),
        declared,
        partitioned,
        _searched(lake, table),
        _KEYED if table.keeps else _PROPERTIES,
    )
    if table.keeps:
        _prepare_keyed(lake.path(table))
    if partitioned:
        columns = cast(StructType, StructType.fromDDL(QUARANTINE))
        _create(lake.path(table, "quarantine"), columns, True, "reason")
    if table.early_results:
        _create(lake.path(table, "early"), declared, False, "", _PASSING)
    stored = {f.name: f.dataType for f in delta_log.schema(lake.path(table))}
    wanted = {f.name: f.dataType for f in declared}
    if changed := sorted(n for n in stored | wanted if stored.get(n) != wanted.get(n)):
        raise DeclarationError(
            f"table={table.name}, columns={', '.join(changed)}: the table on disk has other columns or types than its "
            "declaration; give the new shape a new name"
        )


def _say_if_gone(lake: Lake, table: Table) -> None:
    """Reports on standard error that a table has lost its quarantine, which is made again, empty."""
    path = lake.path(table, "quarantine")
    if delta_log.latest(lake.path(table)) > 0 and delta_log.latest(path) < 0:
        remedy = (
            "restore the folder"
            if lake.catalog.kind(table) == "ingest"
            else "a backfill quarantines them again"
        )
        _log.warning(
            f"table={table.name}, quarantine={path}: the folder is gone, and the rows that it held with it; an empty "
            f"one is made; {remedy}"
        )


def _searched(lake: Lake, table: Table) -> str:
    """The columns whose least and greatest value each file records.

    Each costs CPU for every row.
    """
    kind = lake.catalog.kind(table)
    if not lake.catalog.has_quarantine(table):
        return ""
    # the origin shows what wrote a partition; an ingest table has one writer only
    instant = WINDOW if kind == "window" else lake.catalog.event_time(table)
    return instant if kind == "ingest" else f"{instant},{ORIGIN}"


def _create(
    path: Path,
    schema: StructType,
    partitioned: bool,
    searched: str,
    properties: dict[str, str] = _PROPERTIES,
) -> None:
    from deltalake import DeltaTable, Schema

    # the plan judges NOT NULL
    nullable = StructType([StructField(f.name, f.dataType) for f in schema])
    # by delta-rs: an empty commit costs Spark half a second, and a pipeline has many tables
    DeltaTable.create(
        str(path),
        Schema.from_json(nullable.json()),
        mode="ignore",
        configuration=properties
        | ({"delta.dataSkippingStatsColumns": searched} if searched else {}),
        partition_by=[PARTITION] if partitioned else None,
    )


def _prepare_keyed(path: Path) -> None:
    """Lets a keyed table of an earlier version have what `storage.keyed_files` writes.

    Its next step writes it whole.
    """
    from deltalake import DeltaTable, TableFeatures
    from deltalake.schema import Field, PrimitiveType

    table = DeltaTable(str(path))
    if KEY not in {field.name for field in table.schema().fields}:
        table.alter.add_columns(Field(KEY, PrimitiveType("binary")))
    if table.metadata().configuration.get("delta.enableDeletionVectors") != "true":
        table.alter.add_feature(
            TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
        )
        table.alter.set_table_properties({"delta.enableDeletionVectors": "true"})
