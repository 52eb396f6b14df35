"""Targets of published tables: nodes downstream of their tables, each with a check that it holds what its table has."""

from collections import Counter
from collections.abc import Sequence

import dagster as dg

from assets.resources import RECONCILIATION, LakehouseResource, refusals
from assets.streams import job_key
from lakehouse.declare.catalog import Catalog
from lakehouse.sinks import actions, comparison
from streaming_jobs.supervision.jobs import follower_of

TARGET_EQUALS_TABLE = "target_equals_table"
NOTHING_REFUSED = "nothing_refused"
_DESCRIPTION = """`{table}`, published version by version.

`lakehouse publish start {target}` and `lakehouse publish stop {target}` say whether its follower is to run. The sensor
`supervise_streaming_jobs` restarts one that died, hangs or failed."""


def specs(catalog: Catalog) -> list[dg.AssetSpec]:
    """Returns one node for each target, downstream of the table that is published there."""
    return [
        dg.AssetSpec(
            job_key(follower_of(name)),
            deps=[table.name],
            description=_DESCRIPTION.format(target=name, table=table.name),
            group_name="targets",
            kinds={catalog.target(name)[1].symbol} - {""},
            tags={"pipeline": table.pipeline},
        )
        for name, table in catalog.targets().items()
    ]


def checks(catalog: Catalog) -> list[dg.AssetChecksDefinition]:
    """Returns the check of each target: of its rows, or, if it acts and has none, of its actions."""
    reads_back = {name: catalog.target(name)[1].reads_back for name in catalog.targets()}
    return [
        _target_equals_table(name) if rows else _nothing_refused(name)
        for name, rows in reads_back.items()
    ]


def schedules(catalog: Catalog) -> Sequence[dg.ScheduleDefinition]:
    """Compares all targets each day. It must be switched on, because it reads all of each target and of its table."""
    if not catalog.targets():
        return []
    keys = [job_key(follower_of(name)) for name in catalog.targets()]
    job = dg.define_asset_job("compare_targets", dg.AssetSelection.checks_for_assets(*keys))
    return [
        dg.ScheduleDefinition(
            name="compare_targets_daily",
            cron_schedule="20 3 * * *",
            execution_timezone="UTC",
            job=job,
            description="Compares what targets hold with their tables, reading both whole.",
        )
    ]


def _nothing_refused(name: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=job_key(follower_of(name)),
        name=NOTHING_REFUSED,
        description="Each action for a row was done: none was refused and still is.",
    )
    def check(lakehouse: LakehouseResource) -> dg.AssetCheckResult:
        _, target = lakehouse.catalog.target(name)
        with refusals():
            refused = actions.refused(lakehouse.settings, target)
        return dg.AssetCheckResult(
            passed=not refused,
            description=f"{len(refused)} refused; `lakehouse publish refused {name}`",
            metadata={
                "refused": len(refused),
                "answers": dict(Counter(line.said for line in refused)),
            },
        )

    return check


def _target_equals_table(name: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=job_key(follower_of(name)),
        name=TARGET_EQUALS_TABLE,
        description="The target holds the rows that its table has at the version that the target holds.",
        pool=RECONCILIATION,
    )
    def check(lakehouse: LakehouseResource) -> dg.AssetCheckResult:
        table, target = lakehouse.catalog.target(name)
        with refusals():
            result = comparison.compare(lakehouse.declared, table, target)
        causes = Counter(difference.cause for difference in result.differences)
        return dg.AssetCheckResult(
            passed=result.verdict == "EQUAL",
            description=f"{result.verdict}: version {result.version} of {table.name}",
            metadata={
                "version": result.version,
                "rows": result.rows,
                "repeated": result.repeated,
                "held": ", ".join(map(str, result.held)),
                "differences": dict(causes),
            },
        )

    return check
