"""Conditions for your own batch assets: they follow the partitions that the streams complete.

    @dg.asset(deps=["sensor_averages"], partitions_def=hours, automation_condition=automation.on_closed())
    def hourly_report(context: dg.AssetExecutionContext) -> None: ...

`docs/how-to/automation.md` shows one whole. The sensor `automation` evaluates them.
"""

import dagster as dg

from assets.checks import STREAM_EQUALS_BATCH

_When = dg.AutomationCondition


def on_closed() -> dg.AutomationCondition:
    """Requests a partition once each time that one of its inputs' partitions was completed or replaced, however late.

    It waits until no partition that it reads is missing, and as long as a blocking check of an
    input fails. Only inputs with partitions of time are followed: ingest tables and reference
    tables change all the time. Partitions from before the asset existed are for a backfill.
    """
    partitioned = dg.AssetSelection.from_string('partitions:"time"')
    missing = _When.any_deps_match(_When.missing()).allow(partitioned)
    # Since the request, not since the run: a partition that is replaced during the run is read again.
    # Neither side is composed of other conditions: Dagster would not know their times then, and would
    # forget what came within the tick of a request.
    newly = _When.any_deps_match(_When.newly_updated()).allow(partitioned)
    updated = newly.since(_When.newly_requested())
    busy = _When.any_deps_in_progress() | _When.in_progress()
    return (updated & ~missing & ~busy & ~check_fails()).with_label("on_closed")


def check_fails() -> dg.AutomationCondition:
    """Returns a condition: an input's blocking check failed and did not pass since. Dagster's own forgets at a new partition."""
    failed = _When.check_failed().since(_When.check_passed())
    of_any_input = _When.any_deps_match(_When.any_checks_match(failed, blocking_only=True))
    return of_any_input.with_label("a_blocking_check_fails")


def reconciled(*tables: str) -> dg.AutomationCondition:
    """Returns a condition: reconciled since the tables' last partition, as in `on_closed() & reconciled("sensor_averages")`."""
    keys = [dg.AssetCheckKey(dg.AssetKey(table), STREAM_EQUALS_BATCH) for table in tables]
    passed = _When.all_checks_match(_When.check_passed()).allow(dg.AssetSelection.checks(*keys))
    return _When.all_deps_match(passed).with_label(f"reconciled({', '.join(tables)})")


def sensor() -> dg.SensorDefinition:
    """Evaluates the automation conditions of all assets of the location, those that are merged into it too."""
    return dg.AutomationConditionSensorDefinition(
        name="automation",
        target=dg.AssetSelection.all(),
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=30,
        description="Requests the runs that automation conditions ask for: batch assets downstream of tables that are completed.",
    )
