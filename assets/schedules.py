"""The jobs that prove a range and that let late rows in, and the schedules that have both done within the hour."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from assets import checks, partitions
from assets.metadata import of_commit
from assets.resources import BOUNDED, PROOF, Lakehouse, refusals
from lakehouse.catalog import Catalog
from lakehouse.event_time import Range, parse_range, text
from lakehouse.settings import Settings

_OP = "reconcile_range"


class RangeOfTable(dg.Config):
    """A range of event time of one derived table."""

    table: str = Field(description="a derived table")
    start: str = Field(default="", description="ISO 8601, UTC; both ends empty: all up to the frontier")
    end: str = Field(default="", description="ISO 8601, UTC, exclusive")


@dg.op(name=_OP, pool=PROOF)
def reconcile_range(config: RangeOfTable, lakehouse: Lakehouse) -> Iterator[dg.AssetCheckEvaluation | dg.Output]:
    """Recomputes a range in batch, compares it with the table and records the verdict; changes nothing."""
    with refusals():
        table = lakehouse.lake.catalog.table(config.table)
        span = parse_range(config.start, config.end) if config.start or config.end else None
    outcome = checks.verdict(lakehouse.settings, checks.proven(lakehouse, table, span))
    yield dg.AssetCheckEvaluation(dg.AssetKey(table.name), checks.STREAM_EQUALS_BATCH, **outcome)
    if not outcome["passed"]:  # a run that found a difference is to be seen as failed
        raise dg.Failure(outcome["description"], outcome["metadata"], allow_retries=False)
    yield dg.Output(outcome["description"])


@dg.job(description="Proves that stream and batch agree over a range of one table.")
def reconcile() -> None:
    reconcile_range()


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


def reconcile_closed(settings: Settings, catalog: Catalog) -> dg.ScheduleDefinition:
    """Hourly, a run for each range that has closed and is not certified under the present declaration."""

    @dg.schedule(
        name="reconcile_closed",
        cron_schedule="10 * * * *",  # the partition before has closed by then
        execution_timezone="UTC",
        job=reconcile,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Proves what has closed since; a range that was not EQUAL is asked again until it is.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        requests = [
            dg.RunRequest(
                run_key=f"{context.scheduled_execution_time:%Y-%m-%d-%H} {t.name} {r}",
                run_config=dg.RunConfig(ops={_OP: RangeOfTable(table=t.name, start=text(r.start), end=text(r.end))}),
                tags={"table": t.name, "range": str(r)},
            )
            for t in partitions.derived(catalog)
            if t.proof
            for r in partitions.uncertified(settings, t)
        ]
        return requests or dg.SkipReason("every closed partition is certified")

    return evaluate
