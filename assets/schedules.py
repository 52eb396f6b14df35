"""The job that proves a range, and the schedule that has every closed partition proven within the hour."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from assets import checks, partitions
from assets.resources import PROOF, Lakehouse, refusals
from lakehouse.catalog import Catalog
from lakehouse.event_time import parse_range, text
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
    outcome = checks.verdict(checks.proven(lakehouse, table, span))
    yield dg.AssetCheckEvaluation(dg.AssetKey(table.name), checks.STREAM_EQUALS_BATCH, **outcome)
    if not outcome["passed"]:  # a run that found a difference is to be seen as failed
        raise dg.Failure(outcome["description"], outcome["metadata"], allow_retries=False)
    yield dg.Output(outcome["description"])


@dg.job(description="Proves that stream and batch agree over a range of one table.")
def reconcile() -> None:
    reconcile_range()


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
            for r in partitions.uncertified(settings, t)
        ]
        return requests or dg.SkipReason("every closed partition is certified")

    return evaluate
