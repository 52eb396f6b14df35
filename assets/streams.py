"""Streaming jobs: nodes of the graph between topics and records, and the jobs that start and stop them.

A stream is a process of its own, never a Dagster run: it goes on while Dagster restarts. What is shown of it, it says
itself (`streaming_jobs.progress`).
"""

from collections.abc import Iterator

import dagster as dg

from assets.resources import Lakehouse, refusals
from lakehouse.catalog import Catalog
from lakehouse.event_time import parse_instant
from lakehouse.table import KafkaSource
from streaming_jobs.progress import JobStatus

_DESCRIPTION = """The process that fills {tables}, live.

Job `start_{pipeline}` starts it, `stop_{pipeline}` drains and stops it; it goes on without Dagster."""


def job_key(pipeline: str) -> dg.AssetKey:
    return dg.AssetKey(["streaming_job", pipeline])


def specs(catalog: Catalog) -> list[dg.AssetSpec]:
    """One node a pipeline, behind the topics that it reads."""
    return [
        dg.AssetSpec(
            job_key(pipeline),
            deps=_topics(catalog, pipeline),
            description=_DESCRIPTION.format(
                pipeline=pipeline, tables=", ".join(f"`{t.name}`" for t in catalog.of_pipeline(pipeline))
            ),
            group_name="streaming_jobs",
            kinds={"spark", "kafka"} if _topics(catalog, pipeline) else {"spark"},
            tags={"pipeline": pipeline},
        )
        for pipeline in catalog.pipelines()
    ]


def jobs(catalog: Catalog) -> list[dg.JobDefinition]:
    """Two jobs a pipeline: start and stop."""
    return [make(pipeline) for pipeline in catalog.pipelines() for make in (_start, _stop)]


def observed(status: JobStatus) -> dg.AssetObservation:
    """What a streaming job says of itself, as an event of its node."""
    metadata = {
        "state": status.state,
        "pid": status.pid,
        "since": dg.MetadataValue.timestamp(parse_instant(status.started_at)),
        "heartbeat": dg.MetadataValue.timestamp(parse_instant(status.heartbeat)),
        "queries": sum(q.active for q in status.queries),
    }
    if status.error:
        metadata["error"] = status.error
    return dg.AssetObservation(job_key(status.pipeline), metadata=metadata)


def _topics(catalog: Catalog, pipeline: str) -> list[str]:
    inputs = {name for table in catalog.of_pipeline(pipeline) for name in table.inputs}
    return sorted(name for name in inputs if isinstance(catalog.sources.get(name), KafkaSource))


def _start(pipeline: str) -> dg.JobDefinition:
    @dg.op(name=f"start_{pipeline}_job")
    def start(lakehouse: Lakehouse) -> Iterator[dg.AssetObservation | dg.Output]:
        from streaming_jobs import supervisor

        with refusals():
            status = supervisor.start(lakehouse.settings, pipeline, wait=180)
        yield observed(status)
        yield dg.Output(status.pid)

    @dg.job(name=f"start_{pipeline}", description=f"Starts the streaming job of `{pipeline}`, if it does not run.")
    def start_job() -> None:
        start()

    return start_job


def _stop(pipeline: str) -> dg.JobDefinition:
    @dg.op(name=f"stop_{pipeline}_job")
    def stop(lakehouse: Lakehouse) -> Iterator[dg.AssetObservation | dg.Output]:
        from streaming_jobs import supervisor

        with refusals():
            status = supervisor.stop(lakehouse.settings, pipeline)
        if status is not None:
            yield observed(status)
        yield dg.Output(None if status is None else status.state)

    @dg.job(name=f"stop_{pipeline}", description=f"Drains and stops the streaming job of `{pipeline}`, if it runs.")
    def stop_job() -> None:
        stop()

    return stop_job
