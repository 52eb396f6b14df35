"""The lakehouse as one code location of Dagster's: its Definitions, for settings that are given."""

import warnings
from collections.abc import Collection

import dagster as dg

from assets import (
    checks,
    maintenance,
    reconciling,
    reports,
    savepoints,
    scheduled,
    schedules,
    sensors,
    streams,
    tables,
    targets,
    upgrades,
)
from assets.resources import LakehouseResource
from lakehouse import logs
from lakehouse.declare import catalog
from lakehouse.settings import Settings


def build(settings: Settings, own: Collection[str] = ()) -> dg.Definitions:
    """The lakehouse of `settings` as Dagster sees it.

    Reads Delta logs for column schemas, starts no Spark. A run takes its settings from its own
    environment, but those that are named in `own`, the root, the modules and the jars from here.
    """
    logs.configure(settings)
    # of backfill policies; each load and run would print a page
    warnings.simplefilter("ignore", dg.BetaWarning)
    known = catalog.load(settings)
    return dg.Definitions(
        assets=[
            *streams.specs(settings, known),
            *tables.specs_and_assets(settings, known),
            *targets.specs(known),
        ],
        asset_checks=[*checks.checks(known), *targets.checks(known)],
        jobs=[
            *streams.jobs(known),
            reconciling.reconcile,
            reconciling.repair,
            schedules.update,
            schedules.bootstrap,
            schedules.replay,
            maintenance.maintain,
            savepoints.create_savepoint,
            savepoints.restore_savepoint,
            upgrades.plan_changes,
            upgrades.fill_upgrade,
            upgrades.exchange_versions,
        ],
        schedules=[
            reconciling.reconcile_closed_partitions(settings, known),
            reconciling.repair_differences(settings, known),
            schedules.merge_late_rows(settings, known),
            maintenance.maintain_hourly,
            savepoints.savepoint_daily,
            *scheduled.schedules(settings, known),
            *targets.schedules(known),
        ],
        sensors=[*sensors.sensors(settings, known), *reports.compute_reports(settings, known)],
        resources={"lakehouse": LakehouseResource.of(settings, own)},
        executor=dg.in_process_executor,  # the steps of a run share its one JVM
    )
