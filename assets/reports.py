"""The sensor that has reports computed when their inputs have closed, and again when these were rewritten."""

from datetime import UTC, datetime

import dagster as dg

from assets.resources import sensor
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.ranges import PARTITION_LENGTHS, Range, floor, joined, partition_range, text
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import report_files

_REPORT = "report"  # a run's tag: the report that it computes
_UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def compute_reports(settings: Settings, catalog: Catalog) -> list[dg.SensorDefinition]:
    """Requests a run for each range of each report that is due, one run of a report at a time. No sensor without a report.

    A range that a run has not computed is requested again in the next hour.
    """
    reports = [table for table in catalog if table.kind.is_report]
    if not reports:
        return []

    @sensor(
        name="compute_reports",
        target=[table.name for table in reports],
        minimum_interval_seconds=60,
        description="Has reports computed whose inputs have closed, or were rewritten since.",
    )
    def evaluate(context: dg.SensorEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        lakehouse, hour = Lakehouse(settings, catalog), f"{datetime.now(UTC):%Y-%m-%d-%H}"
        requests = []
        for table in reports:
            under_way = dg.RunsFilter(statuses=_UNDER_WAY, tags={_REPORT: table.name})
            if not (spans := due(lakehouse, table)) or context.instance.get_runs_count(under_way):
                continue
            requests += [_request(table, span, hour) for span in spans]
        return requests or dg.SkipReason("every closed partition of every report is computed")

    return [evaluate]


def due(lakehouse: Lakehouse, table: Table) -> list[Range]:
    """Returns the ranges of a report to compute now, not before `settings.since`, by logs alone."""
    from lakehouse.batch import batch_state  # the batch run, which the definitions load without

    state = batch_state.read(lakehouse, table)
    ahead = state.ahead
    starts = []
    for source in table.closes_with:
        for file in delta_log.files(lakehouse.path(source)):
            if file["num_records"]:
                key = file[f"partition.{PARTITION}"]
                starts.append(partition_range(key, source.partition_by).start)
    if not starts:
        return []
    first = floor(min(starts), PARTITION_LENGTHS[table.partition_by])
    start = max(first, lakehouse.settings.first_day)
    computed = report_files.computed(lakehouse.settings, table)
    computed -= set(state.outdated)
    keys = Range(start, ahead).partitions(table.partition_by) if start < ahead else ()
    return joined(partition_range(key, table.partition_by) for key in keys if key not in computed)


def _request(table: Table, span: Range, hour: str) -> dg.RunRequest:
    keys = list(span.partitions(table.partition_by))
    tags = {
        _REPORT: table.name,
        "dagster/asset_partition_range_start": keys[0],
        "dagster/asset_partition_range_end": keys[-1],
    }
    key = f"{table.name} {text(span.start)} {text(span.end)} {hour}"
    return dg.RunRequest(run_key=key, asset_selection=[dg.AssetKey(table.name)], tags=tags)
