"""The sensor that has reports computed when their inputs have closed, and again when these were rewritten."""

from datetime import UTC, datetime

import dagster as dg

from lakehouse.declare.catalog import Catalog
from lakehouse.ranges import Range, text
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import Lakehouse

_REPORT = "report"  # a run's tag: the report that it computes
_UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def compute_reports(settings: Settings, catalog: Catalog) -> list[dg.SensorDefinition]:
    """A run for each range of each report that is due, one run of a report at a time; none without a report.

    What a run has not brought about is asked for again in the next hour.
    """
    reports = [table for table in catalog if table.kind.is_report]
    if not reports:
        return []

    @dg.sensor(
        name="compute_reports",
        target=[table.name for table in reports],
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Has reports computed whose inputs have closed, or were rewritten since.",
    )
    def evaluate(context: dg.SensorEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        from batch_jobs.reports import due

        lakehouse, hour = Lakehouse(settings, catalog), f"{datetime.now(UTC):%Y-%m-%d-%H}"
        requests = []
        for table in reports:
            under_way = dg.RunsFilter(statuses=_UNDER_WAY, tags={_REPORT: table.name})
            if not (spans := due(lakehouse, table)) or context.instance.get_runs_count(under_way):
                continue
            for span in spans:
                requests.append(
                    _request(table.name, list(span.partitions(table.partition_by)), span, hour)
                )
        return requests or dg.SkipReason("every closed partition of every report is computed")

    return [evaluate]


def _request(name: str, partitions: list[str], span: Range, hour: str) -> dg.RunRequest:
    tags = {
        _REPORT: name,
        "dagster/asset_partition_range_start": partitions[0],
        "dagster/asset_partition_range_end": partitions[-1],
    }
    return dg.RunRequest(
        run_key=f"{name} {text(span.start)} {text(span.end)} {hour}",
        asset_selection=[dg.AssetKey(name)],
        tags=tags,
    )
