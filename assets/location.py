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
    """Returns the lakehouse of `settings` as Dagster sees it.

    Reads Delta logs for column schemas, starts no Spark. A run takes its settings from its own
    environment, except the root, the modules, the jars and the settings in `own`, which come from here.
    """
    logs.configure(settings)
    # warnings about backfill policies: each load and run would print a page of them
    warnings.simplefilter("ignore", dg.BetaWarning)
    loaded = catalog.load(settings)
    return dg.Definitions(
        assets=[
            *streams.specs(settings, loaded),
            *tables.specs_and_assets(settings, loaded),
            *targets.specs(loaded),
        ],
        asset_checks=[
            *checks.checks(loaded),
            *targets.checks(loaded),
            *upgrades.checks(settings, loaded),
        ],
        jobs=[
            *streams.jobs(loaded),
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
            upgrades.compare_versions,
            upgrades.exchange_versions,
        ],
        schedules=[
            reconciling.reconcile_closed_partitions(settings, loaded),
            reconciling.repair_differences(settings, loaded),
            schedules.merge_late_rows(settings, loaded),
            maintenance.maintain_hourly,
            *checks.check_expectations(settings, loaded),
            savepoints.savepoint_daily,
            upgrades.follow_versions(settings, loaded),
            *scheduled.schedules(settings, loaded),
            *targets.schedules(loaded),
        ],
        sensors=[*sensors.sensors(settings, loaded), *reports.compute_reports(settings, loaded)],
        resources={"lakehouse": LakehouseResource.of(settings, own)},
        executor=dg.in_process_executor,  # the steps of a run share its one JVM
    )
