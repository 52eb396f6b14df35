"""Scheduled pipelines: each has a job that runs it up to the present, and a schedule that launches this job.

The run is the streaming job's own process, and the Dagster run waits for it. If Dagster stops
meanwhile, the process goes on.
"""

from collections.abc import Iterator

import dagster as dg

from assets.metadata import instant
from assets.resources import LakehouseResource, job_of, refusals, run_key, schedule
from assets.streams import asked_by, observed
from lakehouse.declare.catalog import Catalog
from lakehouse.ranges import parse_instant
from lakehouse.settings import Settings
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import scheduled, supervisor


def schedules(settings: Settings, catalog: Catalog) -> list[dg.ScheduleDefinition]:
    """Returns a schedule, with its job, for each pipeline that the settings say is scheduled."""
    made = []
    for pipeline in catalog.pipelines():
        if cron := settings.freshness_of(pipeline).cron:
            made.append(_schedule(settings, pipeline, cron.text, _job(catalog, pipeline)))
    return made


def _schedule(
    settings: Settings, pipeline: str, cron: str, job: dg.JobDefinition
) -> dg.ScheduleDefinition:
    @schedule(
        name=f"run_{pipeline}",
        cron_schedule=cron,
        job=job,
        description=f"Runs the streaming job of `{pipeline}` up to the present, if it is to run.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if why := scheduled.off(settings, pipeline):
            return dg.SkipReason(why)
        status = supervisor.status(settings, pipeline)
        if status and status.alive and status.freshness == str(settings.freshness_of(pipeline)):
            return dg.SkipReason(f"the run of {status.started_at} goes on")
        return dg.RunRequest(run_key=run_key(context), tags={"pipeline": pipeline})

    return evaluate


def _job(catalog: Catalog, pipeline: str) -> dg.JobDefinition:
    ingests = {table.name for table in catalog.of_pipeline(pipeline) if table.kind.reads_sources}

    description = f"Runs the streaming job of `{pipeline}` up to the present."

    @dg.op(name=f"run_{pipeline}_job", description=description, pool=f"run_{pipeline}")
    def run(
        context: dg.OpExecutionContext, lakehouse: LakehouseResource
    ) -> Iterator[dg.AssetObservation | dg.Output]:
        with refusals():
            status = scheduled.run(lakehouse.settings, pipeline, by=asked_by(context))
        yield observed(lakehouse.settings, status)
        yield dg.Output(status.state, metadata=_done(status, ingests))

    return job_of(f"run_{pipeline}", run)


def _done(status: JobStatus, ingests: set[str]) -> dict[str, dg.MetadataValue]:
    """Returns the result of a run: the rows read from topics, the earliest frontier of its tables, and each table."""
    tables = [
        dg.TableRecord(
            {
                "table": q.table,
                "rows": q.rows,
                "late": q.late,
                "quarantined": q.quarantined,
                "frontier": q.frontier or "",
            }
        )
        for q in status.queries
    ]
    frontiers = [parse_instant(q.frontier) for q in status.queries if q.frontier]
    return {
        "rows": dg.MetadataValue.int(sum(q.rows for q in status.queries if q.table in ingests)),
        **instant("frontier", min(frontiers, default=None)),
        **({"tables": dg.MetadataValue.table(tables)} if tables else {}),
    }
