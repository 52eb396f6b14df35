"""The job that lets late rows in, and the schedule that has it done within minutes."""

from collections.abc import Iterator

import dagster as dg

from assets.metadata import of_commit
from assets.resources import BOUNDED, Lakehouse, refusals
from lakehouse.catalog import Catalog
from lakehouse.event_time import Range
from lakehouse.settings import Settings


@dg.op(pool=BOUNDED)
def update_tables(lakehouse: Lakehouse) -> Iterator[dg.AssetMaterialization | dg.Output]:
    """Rewrites the closed partitions that late rows made dirty, table after table, inputs first."""
    from batch_jobs import update as job

    rewritten = 0
    with refusals():
        for commit in job.run(lakehouse.lake):
            rewritten += 1
            table = lakehouse.lake.catalog.table(commit.table)
            for key in Range(commit.start, commit.end).partitions(table.grain):
                yield dg.AssetMaterialization(table.name, partition=key, metadata=of_commit(commit))
    yield dg.Output(rewritten)


@dg.job(description='Lets late rows into the closed partitions of tables declared late="update".')
def update() -> None:
    update_tables()


def update_closed(settings: Settings, catalog: Catalog) -> dg.ScheduleDefinition:
    """Every ten minutes, a run if a closed partition waits for late rows; asked of journals, without Spark."""

    @dg.schedule(
        name="update_closed",
        cron_schedule="*/10 * * * *",
        execution_timezone="UTC",
        job=update,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Has windows that rows came too late for computed again, once their partition has closed.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        from batch_jobs import update as job

        found = job.waiting(settings, catalog)
        names = [name for name, dirt in found.items() if any(d.closed for d in dirt)]
        if not names:
            return dg.SkipReason("no closed partition waits for late rows")
        return dg.RunRequest(run_key=f"{context.scheduled_execution_time:%Y-%m-%d-%H-%M}", tags={"tables": ", ".join(names)})

    return evaluate
