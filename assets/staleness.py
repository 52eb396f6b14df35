"""The freshness policy of a table: it is stale if nothing was added to it for too long.

Dagster's daemon evaluates the policy.
"""

from collections.abc import Iterator
from datetime import timedelta

import dagster as dg

from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.durations import duration
from lakehouse.ranges import PARTITION_LENGTHS, past_beginning, text
from lakehouse.settings import Settings
from lakehouse.storage.log.commit_log import frontier
from streaming_jobs.exporters.notifications import Notice


def policy(settings: Settings, catalog: Catalog, table: Table) -> dg.FreshnessPolicy | None:
    """Fails when the table is stale, and warns half of its `stale_after` before. None for a table that may stay as it is."""
    longest = bound(settings, catalog, table)
    if longest is None:
        return None
    return dg.FreshnessPolicy.time_window(
        fail_window=longest, warn_window=longest - _within(settings, table) / 2
    )


def bound(settings: Settings, catalog: Catalog, table: Table) -> timedelta | None:
    """Returns the longest time without an addition; None for a table without partitions.

    Ingest tables are reported each minute, derived tables when a partition closes, so derived tables
    may take a partition longer. In a pipeline that does not run continuously, each table may also
    take the time between two runs.
    """
    kind, knob = table.kind, settings.freshness_of(table.pipeline)
    if not kind.has_partitions:
        return None
    longest = _within(settings, table) + (
        knob.cron.longest if knob.cron else knob.interval or timedelta(0)
    )
    return longest + (timedelta(0) if kind.reads_sources else PARTITION_LENGTHS[table.partition_by])


def stale(settings: Settings, catalog: Catalog, instance: dg.DagsterInstance) -> Iterator[Notice]:
    """Yields a notice for each table whose policy fails now, with the time since which it fails."""
    keys = {dg.AssetKey(table.name): table for table in catalog}
    for key, record in instance.get_freshness_state_records(list(keys)).items():
        table = keys[key]
        if record.freshness_state == "FAIL" and (longest := bound(settings, catalog, table)):
            ahead = past_beginning(frontier(settings, table))
            why = f"nothing was added for {longest}; its frontier is {text(ahead) if ahead else 'not known yet'}"
            yield Notice("freshness_failed", table.pipeline, why, record.updated_at, table.name)


def _within(settings: Settings, table: Table) -> timedelta:
    return table.stale_after or duration(settings.stale_after)
