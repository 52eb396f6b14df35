"""The jobs that reconcile ranges and repair what differs, and the hourly schedules of both."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import dagster as dg
from pydantic import Field

from assets import checks
from assets.metadata import of_coverage
from assets.resources import (
    BATCH,
    RECONCILIATION,
    LakehouseResource,
    job_of,
    refusals,
    run_key,
    schedule,
)
from lakehouse.declare.catalog import Catalog
from lakehouse.ranges import Range, parse_range, text
from lakehouse.reconcile import coverage
from lakehouse.settings import Settings
from lakehouse.storage.disk.publish_lock import reconciling
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.reconcile_attempts import brief

_RECONCILE, _REPAIR = "reconcile_ranges", "repair_table"


class RangeOfTable(dg.Config):
    """A range of event time of one derived table."""

    table: str = Field(description="a derived table")
    start: str = Field(
        default="",
        description="ISO 8601, UTC; leave both ends empty for everything up to the frontier",
    )
    end: str = Field(default="", description="ISO 8601, UTC, exclusive")

    @property
    def span(self) -> Range | None:
        return parse_range(self.start, self.end) if self.start or self.end else None


class Ranges(dg.Config):
    """The ranges to reconcile; the ranges of one table follow each other."""

    ranges: list[RangeOfTable]


@dg.op(name=_RECONCILE, pool=RECONCILIATION)
def reconcile_ranges(
    context: dg.OpExecutionContext, config: Ranges, lakehouse: LakehouseResource
) -> Iterator[dg.AssetCheckEvaluation | dg.AssetObservation | dg.Output]:
    """Recomputes ranges in batch, compares them with their tables and records the verdicts.

    Changes nothing. A table that fails holds up none of the others.
    """
    outcomes = []
    for name, of_table in groupby(config.ranges, lambda asked: asked.table):
        ranges = list(of_table)
        try:
            with refusals():
                table = lakehouse.catalog.table(name)
                spans = [asked.span for asked in ranges]
                with reconciling(lakehouse.settings, table):
                    certificate = checks.reconciled(lakehouse, table, *spans)
        except Exception as err:
            context.log.exception(f"{name}: no verdict")
            why = err.description if isinstance(err, dg.Failure) else brief(err)
            outcomes.append((False, f"{name}: no verdict: {why}"))
            continue
        outcome = checks.verdict(lakehouse.settings, certificate)
        yield dg.AssetCheckEvaluation(dg.AssetKey(name), checks.STREAM_EQUALS_BATCH, **outcome)
        if not table.kind.is_upserted:
            covered = coverage.coverage(lakehouse.declared, table)
            yield dg.AssetObservation(name, metadata=of_coverage(covered))
        outcomes.append((outcome["passed"], f"{name} {outcome['description']}"))
    # a run that found a difference, or no verdict, must show as failed
    if failed := [what for passed, what in outcomes if not passed]:
        raise dg.Failure("\n".join(failed), allow_retries=False)
    yield dg.Output("\n".join(what for _, what in outcomes))


reconcile = job_of("reconcile", reconcile_ranges)


def reconcile_closed_partitions(settings: Settings, catalog: Catalog) -> dg.ScheduleDefinition:
    """Returns the schedule that requests, each hour, one run for all ranges that are due, if there are any."""

    @schedule(
        name="reconcile_closed_partitions",
        cron_schedule="10 * * * *",  # the previous partition has closed by then
        job=reconcile,
        description="Reconciles partitions that have closed or were changed, and the one with the oldest "
        "certificate of each table.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        lakehouse = Lakehouse(settings, catalog)
        chosen = {t.name: coverage.chosen(lakehouse, t) for t in coverage.reconcilable(catalog)}
        ranges = [_range(name, span) for name, choice in chosen.items() for span in choice.spans]
        if not ranges:
            return dg.SkipReason(_nothing_to_reconcile(settings, catalog))
        return dg.RunRequest(
            run_key=run_key(context),
            run_config=dg.RunConfig(ops={_RECONCILE: Ranges(ranges=ranges)}),
            tags={
                name: f"{len(choice.due)}: {', '.join(dict.fromkeys(due.why for due in choice.due))[:200]}"
                for name, choice in chosen.items()
                if choice.due
            },
        )

    return evaluate


def _range(name: str, span: Range | None) -> RangeOfTable:
    if span is None:
        return RangeOfTable(table=name)
    return RangeOfTable(table=name, start=text(span.start), end=text(span.end))


def _nothing_to_reconcile(settings: Settings, catalog: Catalog) -> str:
    without = [t.name for t in catalog.derived if coverage.without_frontier(settings, t)]
    why = "every closed partition has a certificate, and nothing was changed"
    if without:
        why += (
            f"; {', '.join(without)} have rows and no frontier, because their commit logs are gone"
        )
    return why


@dg.op(name=_REPAIR, pool=BATCH)
def repair_table(
    config: RangeOfTable, lakehouse: LakehouseResource
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation | dg.Output]:
    """Rewrites the partitions of a table that are known to differ, one by one, and reconciles each again.

    Without a range, as far as the setting `repair` allows.
    """
    from batch_jobs import repair as job

    with refusals():
        table = lakehouse.catalog.table(config.table)
        done, session = [], lakehouse.session_of(table)
        for part in job.run(session, table.name, config.span, unasked=config.span is None):
            done.append(part)
            metadata: dict[str, Any] = {
                "origin": "batch",
                "cause": part.cause,
                "delta_version": part.version,
                "verdict": part.verdict,
            }
            yield dg.AssetMaterialization(table.name, partition=part.partition, metadata=metadata)
    certificates = coverage.latest(lakehouse.settings, table)
    for last in done[-1:]:
        outcome = checks.verdict(lakehouse.settings, certificates[last.partition])
        key = dg.AssetKey(table.name)
        yield dg.AssetCheckEvaluation(key, checks.STREAM_EQUALS_BATCH, **outcome)
        if last.verdict == "DIFFERENT":
            failure = f"{table.name} {last.partition}: rewritten, and still DIFFERENT"
            raise dg.Failure(failure, allow_retries=False)
    yield dg.Output(len(done))


repair = job_of("repair", repair_table)


def repair_differences(settings: Settings, catalog: Catalog) -> dg.ScheduleDefinition:
    """Returns the schedule that requests, each hour, a run for each table with a difference that `repair` allows."""

    @schedule(
        name="repair_differences",
        cron_schedule="25 * * * *",  # after the reconciliation
        job=repair,
        description="Repairs what differs, for the tables and within the limits that the setting `repair` names.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        from batch_jobs import repair as job

        requests = []
        for table in catalog.derived:
            if allowed := job.allowed(Lakehouse(settings, catalog), table):
                requests.append(
                    dg.RunRequest(
                        run_key=f"{run_key(context)} {table.name}",
                        run_config=dg.RunConfig(ops={_REPAIR: RangeOfTable(table=table.name)}),
                        tags={"table": table.name, "partitions": ", ".join(allowed)[:200]},
                    )
                )
        return requests or dg.SkipReason("no difference that the setting `repair` allows")

    return evaluate
