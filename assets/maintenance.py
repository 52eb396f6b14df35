"""The job that maintains tables and Dagster's own storage, and its hourly schedule."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from dagster._core.instance import RUNLESS_RUN_ID
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.event_log import SqlEventLogStorage, SqliteEventLogStorage
from dagster._core.storage.event_log.schema import SqlEventLogStorageTable as Events
from sqlalchemy import func, select

from assets.resources import BATCH, LakehouseResource, job_of, refusals

KEPT = timedelta(days=7)
# jobs whose runs are removed: partitions, checks and certificates keep what they did
JOBS = ("reconcile", "repair", "update", "maintain", "compare_versions")


@dg.op(pool=BATCH)  # a table that a batch run rewrites would be left out
def maintain_tables(
    context: dg.OpExecutionContext, lakehouse: LakehouseResource
) -> Iterator[dg.Output]:
    """Compacts closed partitions and removes old versions that no reader needs: `lakehouse maintain`.

    Old runs and events leave Dagster's own storage as well.
    """
    from batch_jobs import maintain as job

    with refusals():
        done = list(job.run(lakehouse.declared))
    names = ("files", "commits", "obsolete")
    metadata = {name: sum(getattr(t, name) for t in done) for name in names}
    held = "; ".join(f"{t.table} by {t.held_by}" for t in done if t.held_by)
    yield dg.Output(len(done), metadata=metadata | ({"held": held} if held else {}))


@dg.op
def forget_events(context: dg.OpExecutionContext) -> None:
    """Removes old runs of these jobs from Dagster, and old events of streaming jobs and ingest tables."""
    forget(context.instance, datetime.now(UTC) - KEPT)


maintain = job_of("maintain", maintain_tables, forget_events)
maintain_hourly = dg.ScheduleDefinition(
    name="maintain_hourly",
    cron_schedule="40 * * * *",
    execution_timezone="UTC",
    job=maintain,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Maintains tables and logs. Materialisations of partitions are kept.",
)


def forget(instance: dg.DagsterInstance, before: datetime) -> None:
    """Removes runs of `JOBS` that ended, with their logs, and runless events of no partition, all older than `before`.

    The last event of an asset stays. Dagster has a function that removes runs, but none for events
    without a run; the sensors store thousands of these a day.
    """
    storage = instance.event_log_storage
    for name in JOBS:
        filters = dg.RunsFilter(job_name=name, statuses=FINISHED_STATUSES, created_before=before)
        for run_id in instance.get_run_ids(filters):
            instance.delete_run(run_id)
            instance.compute_log_manager.delete_logs(prefix=[run_id])
            # the run's own file would stay, empty
            if isinstance(storage, SqliteEventLogStorage):
                Path(storage.path_for_shard(run_id)).unlink(missing_ok=True)
    if isinstance(storage, SqlEventLogStorage):
        runless = Events.c.run_id == RUNLESS_RUN_ID
        last = select(func.max(Events.c.id)).where(runless)
        last = last.group_by(Events.c.asset_key, Events.c.dagster_event_type)
        dated = (Events.c.partition.is_(None), Events.c.timestamp < before.replace(tzinfo=None))
        old = Events.delete().where(runless, *dated, Events.c.id.not_in(last))
        for connected in (storage.run_connection(RUNLESS_RUN_ID), storage.index_connection()):
            with connected as connection:
                connection.execute(old)
