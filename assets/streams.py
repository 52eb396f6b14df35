"""Streaming jobs: nodes of the graph between sources and ingest tables, and the jobs that start and stop them.

A streaming job is a process of its own, never a Dagster run, so it goes on while Dagster restarts.
The nodes show what the process reports (`streaming_jobs.progress`).
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from assets.metadata import instant, of_job
from assets.resources import BATCH, LakehouseResource, job_of, refusals
from lakehouse.declare.catalog import Catalog
from lakehouse.settings import Settings
from lakehouse.settings_values import RESOURCES
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import desired, job_logs, scheduled, supervisor
from streaming_jobs.supervision.jobs import target_of

if TYPE_CHECKING:
    from lakehouse.stream.rescaling import Rescaled

_DESCRIPTION = """The process that fills {tables} as a stream.

| job | what it does |
|---|---|
| `start_{pipeline}` | the process is to run: starts it, unless it runs |
| `stop_{pipeline}` | the process is to stop: drains it, or kills it with `now: true` in the configuration |
| `restart_{pipeline}` | stops the process in the same way and starts it again; paused queries are tried again |
| `rescale_{pipeline}` | drains and starts it on the present settings, with the state that Spark keeps divided as these say |

The sensor `supervise_streaming_jobs` restarts a process that died, hangs or failed, and stops restarting one in a crash
loop. The process goes on without Dagster. A scheduled pipeline is run by the schedule `run_{pipeline}` alone."""
_LOG = 15  # lines


class Ending(dg.Config):
    """The way in which a streaming job is ended."""

    now: bool = Field(
        default=False,
        description="kill the process instead of draining it; it still resumes where it was",
    )


def job_key(job: str) -> dg.AssetKey:
    """Returns the node of a streaming job, or, for a follower, that of its target."""
    target = target_of(job)
    return dg.AssetKey(["target", target] if target else ["streaming_job", job])


def specs(settings: Settings, catalog: Catalog) -> list[dg.AssetSpec]:
    """Returns one node for each pipeline, downstream of the topics and folders it reads, with its process's settings."""
    return [
        dg.AssetSpec(
            job_key(pipeline),
            deps=sorted(_sources(catalog, pipeline)),
            description=_DESCRIPTION.format(
                pipeline=pipeline,
                tables=", ".join(f"`{t.name}`" for t in catalog.of_pipeline(pipeline)),
            ),
            group_name="streaming_jobs",
            kinds={"spark", *_sources(catalog, pipeline).values()} - {""},
            tags={"pipeline": pipeline},
            metadata={name: getattr(settings.for_pipeline(pipeline), name) for name in RESOURCES},
        )
        for pipeline in catalog.pipelines()
    ]


def jobs(catalog: Catalog) -> list[dg.JobDefinition]:
    """Returns four jobs for each pipeline: start, stop, restart and rescale."""
    ops = (op for pipeline in catalog.pipelines() for op in _ops(pipeline))
    return [job_of(op.name.removesuffix("_job"), op) for op in ops]


def _ops(pipeline: str) -> list[dg.OpDefinition]:
    job = f"the streaming job of `{pipeline}`"
    stop = f"Drains and stops {job}; it is to be stopped from now on."
    restart = f"Stops and starts {job}; paused queries are tried again."
    return [
        _start(pipeline, f"Starts {job}, unless it runs; it is to run from now on."),
        _ending(pipeline, "stop", supervisor.stop, stop),
        _ending(pipeline, "restart", supervisor.restart, restart),
        _rescale(
            pipeline, f"Starts {job} on the present settings, with the state that Spark keeps."
        ),
    ]


def observed(settings: Settings, status: JobStatus) -> dg.AssetObservation:
    """Returns an event of a streaming job's node: what the job reports, and what was done to it."""
    name = status.pipeline
    wanted, done = desired.read(settings, name), desired.history(settings, name)
    metadata = of_job(status, wanted, done, job_logs.log_tail(settings, name, _LOG)[-3000:])
    return dg.AssetObservation(
        job_key(name), metadata=metadata | instant("next_run", scheduled.next_run(settings, name))
    )


def divided(rescaled: "list[Rescaled]", state: str) -> dg.Output:
    """Returns the tables whose state was divided again. Raises Failure if a state differs from the original."""
    from lakehouse.stream.rescaling import Rescaled, difference

    columns = [dg.TableColumn(field.name) for field in fields(Rescaled)]
    rows = [dg.TableRecord(asdict(table)) for table in rescaled]
    metadata = {"divided": dg.MetadataValue.table(rows, dg.TableSchema(columns))}
    if message := difference(rescaled):
        raise dg.Failure(message, metadata=metadata, allow_retries=False)
    return dg.Output(state, metadata=metadata)


def _sources(catalog: Catalog, pipeline: str) -> dict[str, str]:
    """Returns the declared sources of a pipeline's ingest tables, by name, each with the kind of a job that reads it."""
    ingests = [table for table in catalog.of_pipeline(pipeline) if catalog.sources_of(table)]
    return {name: catalog.sources[name].job_kind for table in ingests for name in table.inputs}


def _start(pipeline: str, description: str) -> dg.OpDefinition:
    @dg.op(name=f"start_{pipeline}_job", description=description)
    def start(
        context: dg.OpExecutionContext, lakehouse: LakehouseResource
    ) -> Iterator[dg.AssetObservation | dg.Output]:
        settings, by = lakehouse.settings, asked_by(context)
        yield from _observing(settings, lambda: supervisor.start(settings, pipeline, by=by))

    return start


def _ending(
    pipeline: str, verb: str, end: Callable[..., JobStatus | None], description: str
) -> dg.OpDefinition:
    @dg.op(name=f"{verb}_{pipeline}_job", description=description)
    def ending(
        context: dg.OpExecutionContext, config: Ending, lakehouse: LakehouseResource
    ) -> Iterator[dg.AssetObservation | dg.Output]:
        settings, by = lakehouse.settings, asked_by(context)
        yield from _observing(settings, lambda: end(settings, pipeline, now=config.now, by=by))

    return ending


def _rescale(pipeline: str, description: str) -> dg.OpDefinition:
    # it may start Spark, as batch runs do
    @dg.op(name=f"rescale_{pipeline}_job", description=description, pool=BATCH)
    def rescale(
        context: dg.OpExecutionContext, lakehouse: LakehouseResource
    ) -> Iterator[dg.AssetObservation | dg.Output]:
        from streaming_jobs.supervision import rescaling

        settings, by = lakehouse.settings, asked_by(context)
        with refusals():
            status, rescaled = rescaling.rescale(settings, pipeline, by=by, says=context.log.info)
        yield observed(settings, status)
        yield divided(rescaled, status.state)

    return rescale


def _observing(
    settings: Settings, act: Callable[[], JobStatus | None]
) -> Iterator[dg.AssetObservation | dg.Output]:
    with refusals():
        status = act()
    if status is not None:
        yield observed(settings, status)
    yield dg.Output(None if status is None else status.state)


def asked_by(context: dg.OpExecutionContext) -> str:
    """Returns the name of the requester for a job's files."""
    return f"Dagster (job {context.job_name}, run {context.run_id[:8]})"
