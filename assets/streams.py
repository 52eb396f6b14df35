"""Streaming jobs: nodes of the graph between topics and ingest tables, and the jobs that start and stop them.

A stream is a process of its own, never a Dagster run: it goes on while Dagster restarts. What is
shown of it, it says itself (`streaming_jobs.progress`).
"""

from collections.abc import Callable, Iterator

import dagster as dg
from pydantic import Field

from assets.metadata import instant, of_job
from assets.resources import Lakehouse, refusals
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.sources import KafkaSource
from lakehouse.settings import RESOURCES, Settings
from streaming_jobs import desired, scheduled, supervisor
from streaming_jobs.progress import JobStatus

_DESCRIPTION = """The process that fills {tables}, live.

| job | does |
|---|---|
| `start_{pipeline}` | has it run from now on: starts it, unless it runs |
| `stop_{pipeline}` | has it stopped from now on: drains it; with `now: true` in the configuration kills it |
| `restart_{pipeline}` | stops it in the same way and starts it again; queries that were paused are tried again |

The sensor `supervise_streaming_jobs` keeps it so: it restarts what died, hangs or failed, and gives up what fails again
and again. The process goes on without Dagster. One that is scheduled is run by the schedule `run_{pipeline}`, and by nothing
else."""
_LOG = 15  # lines


class Ending(dg.Config):
    """How a streaming job is ended."""

    now: bool = Field(
        default=False,
        description="kill it instead of draining it; it resumes where it was all the same",
    )


def job_key(pipeline: str) -> dg.AssetKey:
    return dg.AssetKey(["streaming_job", pipeline])


def specs(settings: Settings, catalog: Catalog) -> list[dg.AssetSpec]:
    """One node a pipeline, behind the topics that it reads, with what its process is given."""
    return [
        dg.AssetSpec(
            job_key(pipeline),
            deps=_topics(catalog, pipeline),
            description=_DESCRIPTION.format(
                pipeline=pipeline,
                tables=", ".join(f"`{t.name}`" for t in catalog.of_pipeline(pipeline)),
            ),
            group_name="streaming_jobs",
            kinds={"spark", "kafka"} if _topics(catalog, pipeline) else {"spark"},
            tags={"pipeline": pipeline},
            metadata={name: getattr(settings.for_pipeline(pipeline), name) for name in RESOURCES},
        )
        for pipeline in catalog.pipelines()
    ]


def jobs(catalog: Catalog) -> list[dg.JobDefinition]:
    """Three jobs a pipeline: start, stop and restart."""
    return [
        make(pipeline) for pipeline in catalog.pipelines() for make in (_start, _stop, _restart)
    ]


def observed(settings: Settings, status: JobStatus) -> dg.AssetObservation:
    """What a streaming job says of itself, and what was done to it, as an event of its node."""
    name = status.pipeline
    wanted, done = desired.read(settings, name), desired.history(settings, name)
    metadata = of_job(status, wanted, done, supervisor.log_tail(settings, name, _LOG)[-3000:])
    return dg.AssetObservation(
        job_key(name), metadata=metadata | instant("next_run", scheduled.next_run(settings, name))
    )


def _topics(catalog: Catalog, pipeline: str) -> list[str]:
    inputs = {name for table in catalog.of_pipeline(pipeline) for name in table.inputs}
    return sorted(name for name in inputs if isinstance(catalog.sources.get(name), KafkaSource))


def _start(pipeline: str) -> dg.JobDefinition:
    @dg.op(name=f"start_{pipeline}_job")
    def start(
        context: dg.OpExecutionContext, lakehouse: Lakehouse
    ) -> Iterator[dg.AssetObservation | dg.Output]:
        settings, by = lakehouse.settings, asked_by(context)
        yield from _told(settings, lambda: supervisor.start(settings, pipeline, by=by))

    @dg.job(
        name=f"start_{pipeline}",
        description=f"Has the streaming job of `{pipeline}` run: starts it, unless it runs.",
    )
    def start_job() -> None:
        start()

    return start_job


def _stop(pipeline: str) -> dg.JobDefinition:
    @dg.op(name=f"stop_{pipeline}_job")
    def stop(
        context: dg.OpExecutionContext, config: Ending, lakehouse: Lakehouse
    ) -> Iterator[dg.AssetObservation | dg.Output]:
        settings, by = lakehouse.settings, asked_by(context)
        yield from _told(
            settings, lambda: supervisor.stop(settings, pipeline, now=config.now, by=by)
        )

    @dg.job(
        name=f"stop_{pipeline}",
        description=f"Has the streaming job of `{pipeline}` stopped: drains it, if it runs.",
    )
    def stop_job() -> None:
        stop()

    return stop_job


def _restart(pipeline: str) -> dg.JobDefinition:
    @dg.op(name=f"restart_{pipeline}_job")
    def restart(
        context: dg.OpExecutionContext, config: Ending, lakehouse: Lakehouse
    ) -> Iterator[dg.AssetObservation | dg.Output]:
        settings, by = lakehouse.settings, asked_by(context)
        yield from _told(
            settings, lambda: supervisor.restart(settings, pipeline, now=config.now, by=by)
        )

    @dg.job(
        name=f"restart_{pipeline}",
        description=f"Stops and starts the streaming job of `{pipeline}`; paused queries are tried again.",
    )
    def restart_job() -> None:
        restart()

    return restart_job


def _told(
    settings: Settings, act: Callable[[], JobStatus | None]
) -> Iterator[dg.AssetObservation | dg.Output]:
    with refusals():
        status = act()
    if status is not None:
        yield observed(settings, status)
    yield dg.Output(None if status is None else status.state)


def asked_by(context: dg.OpExecutionContext) -> str:
    """Who asks, as a job's files tell it."""
    return f"Dagster (job {context.job_name}, run {context.run_id[:8]})"
