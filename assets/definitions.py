"""The Definitions that `workspace.yaml` loads: everything follows from the catalog that the environment names."""

import warnings

import dagster as dg

from assets import checks, proving, scheduled, schedules, sensors, streams, tables, upkeep
from assets.resources import Lakehouse
from lakehouse.declare import catalog
from lakehouse.settings import Settings, from_environment


def build(settings: Settings) -> dg.Definitions:
    """The lakehouse of `settings` as Dagster sees it; reads Delta logs for column schemas, starts no Spark."""
    warnings.simplefilter("ignore", dg.BetaWarning)  # of backfill policies; each load and run would print a page
    known = catalog.load(settings)
    return dg.Definitions(
        assets=[*streams.specs(settings, known), *tables.specs_and_assets(settings, known)],
        asset_checks=checks.checks(known),
        jobs=[
            *streams.jobs(known), proving.reconcile, proving.repair, schedules.update, schedules.seam, schedules.reinject,
            upkeep.maintain,
        ],
        schedules=[
            proving.reconcile_closed_partitions(settings, known),
            proving.repair_differences(settings, known),
            schedules.merge_late_rows(settings, known),
            upkeep.maintain_hourly,
            *scheduled.schedules(settings, known),
        ],
        sensors=sensors.sensors(settings, known),
        resources={"lakehouse": Lakehouse.of(settings)},
        executor=dg.in_process_executor,  # the steps of a run share its one JVM
    )


definitions = build(from_environment())
