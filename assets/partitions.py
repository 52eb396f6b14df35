"""Partitions of derived tables as Dagster has them. Read without Spark.

Dagster's partitions and the tables' own have the same keys (`ranges.partition_format`).
"""

from datetime import datetime

import dagster as dg

from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.ranges import PARTITION_LENGTHS, partition_format
from lakehouse.settings import Settings
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit


def definition(settings: Settings, table: Table) -> dg.TimeWindowPartitionsDefinition:
    """Returns the hours or days of a derived table from `settings.since` on."""
    kinds = {"hour": dg.HourlyPartitionsDefinition, "day": dg.DailyPartitionsDefinition}
    return kinds[table.partition_by](
        start_date=settings.first_day, timezone="UTC", fmt=partition_format(table.partition_by)
    )


def mapping(table: Table) -> dg.TimeWindowPartitionMapping | None:
    """Returns the mapping to the input's partitions that a partition of `table` reads; None if that is the same one alone."""
    length = PARTITION_LENGTHS[table.partition_by]
    if table.context:
        back, on = -(-table.context.before // length), -(-table.context.after // length)
        return dg.TimeWindowPartitionMapping(
            start_offset=-back, end_offset=on, allow_nonexistent_upstream_partitions=True
        )
    if table.window is None or table.window.within(length):
        return None
    back = -(-table.window.reach // length)
    return dg.TimeWindowPartitionMapping(
        start_offset=-back, allow_nonexistent_upstream_partitions=True
    )


def reached(
    settings: Settings, catalog: Catalog, table: Table
) -> tuple[datetime | None, dict[str, object]]:
    """Returns the table's frontier, and the offsets read of the topics by then: topic -> partition -> next offset."""
    commit = next((c for c in CommitLog(settings, table).by_stream() if c.frontier), None)
    return commit.frontier if commit else None, _read(settings, catalog, table, commit)


def _read(
    settings: Settings, catalog: Catalog, table: Table, commit: Commit | None
) -> dict[str, object]:
    """Returns the offsets that had been read of the topics when the table's commit was made."""
    inputs = catalog.timed_inputs(table)
    if commit is None or not inputs:
        return dict(commit.inputs) if commit else {}
    offsets: dict[str, object] = {}
    for source in inputs:
        lines, version = CommitLog(settings, source).by_stream(), commit.version_read(source.name)
        before = next((c for c in lines if c.version <= version), None)
        offsets |= _read(settings, catalog, source, before)
    return offsets
