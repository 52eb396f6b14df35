"""The commands of the `lakehouse` command line that have to do with streaming jobs."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli import console, opening
from lakehouse.cli.console import AsJson, Pipelines, Wait
from streaming_jobs.command_groups import (
    exporter_commands,
    publish_commands,
    savepoint_commands,
    topic_commands,
    upgrade_commands,
)

if TYPE_CHECKING:
    from lakehouse.settings import Settings
    from lakehouse.storage.lakehouse import Lakehouse
    from streaming_jobs.progress import JobStatus

stream = console.group("Streaming jobs: start, stop, watch and supervise them.")
app = console.group(
    groups={
        "stream": stream,
        "topic": topic_commands.group,
        "savepoint": savepoint_commands.group,
        "publish": publish_commands.group,
        "upgrade": upgrade_commands.group,
    }
)

for command in (exporter_commands.board, exporter_commands.metrics, exporter_commands.lineage):
    app.command()(command)

_DRAIN = Annotated[float, typer.Option(help="Seconds to drain")]
_NOW = Annotated[
    bool,
    typer.Option(
        "--now", help="Kill the job instead of draining it; it still resumes where it was"
    ),
]


@stream.command()
def start(pipelines: Pipelines = None, wait: Wait = None) -> None:
    """Start streaming jobs. Each is a process of its own, which goes on when this command ends.

    A scheduled job is run once up to the present, while the command waits, and is then on its
    schedule.
    """
    from streaming_jobs.supervision import supervisor

    lakehouse, named = _chosen(pipelines)
    settings = lakehouse.settings
    for pipeline in named:
        _remark(settings, pipeline)
        with console.working(f"starting {pipeline}"):
            status = supervisor.start(settings, pipeline, wait=wait, by=_by("start"))
        _show_started(settings, status)


@stream.command()
def stop(
    pipelines: Pipelines = None,
    timeout: _DRAIN = 60,
    now: _NOW = False,
    savepoint: Annotated[
        str,
        typer.Option(metavar="NAME", help="Create a savepoint of that name once all have stopped"),
    ] = "",
) -> None:
    """Drain and stop streaming jobs: what they have read goes through every table first.

    Says for how long their topics keep what comes meanwhile.
    """
    from datetime import UTC, datetime

    from lakehouse.storage.versions import savepoints
    from lakehouse.stream import pauses
    from streaming_jobs.supervision import supervisor

    lakehouse, named = _chosen(pipelines)
    settings = lakehouse.settings
    if savepoint:  # an existing name is refused before anything stops
        savepoints.check_name(settings, savepoint)
    for pipeline in reversed(named):
        with console.working(f"stopping {pipeline}"):
            status = supervisor.stop(settings, pipeline, timeout=timeout, now=now, by=_by("stop"))
        console.print_text(f"{pipeline}: {status.state if status else 'never ran'}")
        if status:
            for line in pauses.remarks(lakehouse, pipeline, datetime.now(UTC)):
                console.print_text(f"  {line}")
    if savepoint:
        made = savepoints.create(lakehouse, savepoint, "")
        console.print_text(
            f"savepoint {savepoint}: {len(made.tables)} tables, {made.bytes:,} bytes"
        )


@stream.command()
def restart(
    pipelines: Pipelines = None, wait: Wait = None, timeout: _DRAIN = 60, now: _NOW = False
) -> None:
    """Stop and start streaming jobs; paused queries are tried again."""
    from streaming_jobs.supervision import supervisor

    lakehouse, named = _chosen(pipelines)
    settings = lakehouse.settings
    for pipeline in named:
        _remark(settings, pipeline)
        with console.working(f"restarting {pipeline}"):
            status = supervisor.restart(
                settings, pipeline, timeout=timeout, now=now, wait=wait, by=_by("restart")
            )
        _show_started(settings, status)


@stream.command()
def rescale(pipelines: Pipelines = None, wait: Wait = None) -> None:
    """Start streaming jobs again on more or fewer resources, as the settings say now.

    Where Spark keeps a state, it is divided into that many partitions while the job is stopped, and
    what it holds before and after is compared. A command that was killed goes on when it is run
    again. Exit code 0 if each state holds the same, 1 if one does not, 2 when refused.
    """
    from streaming_jobs.supervision import rescaling

    lakehouse, named = _chosen(pipelines)
    settings = lakehouse.settings
    differ = False
    for pipeline in named:
        with console.working(f"stopping {pipeline}") as says:
            status, rescaled = rescaling.rescale(
                settings, pipeline, wait=wait, by=_by("rescale"), says=says
            )
        _show_started(settings, status)
        if rescaled:
            columns = ("table", "partitions before", "now", "rows", "checksum", "before and now")
            console.print_rows(columns, (tuple(asdict(table).values()) for table in rescaled))
        else:
            console.print_text(f"{pipeline}: no state had to be divided again")
        from lakehouse.stream.rescaling import difference  # with Spark, which it has by now

        if message := difference(rescaled):
            console.print_error(message)
            differ = True
    if differ:
        raise typer.Exit(1)


@stream.command()
def status(pipelines: Pipelines = None, as_json: AsJson = False) -> None:
    """Show the state of streaming jobs and of each of their queries."""
    from rich.text import Text

    from lakehouse import ranges
    from streaming_jobs.command_groups import views
    from streaming_jobs.supervision import scheduled, supervisor

    lakehouse, named = _chosen(pipelines)
    settings = lakehouse.settings
    statuses = [(name, supervisor.status(settings, name)) for name in named]
    if as_json:
        for name, job in statuses:
            due = scheduled.next_run(settings, name)
            knob = {
                "freshness": str(settings.freshness_of(name)),
                "next_run": due and ranges.text(due),
            }
            console.print_json(
                [(asdict(job) if job else {"pipeline": name, "state": "never ran"}) | knob]
            )
        return
    console.out().print(views.queries_table(statuses))
    about = "counts begin when a job starts; `lakehouse table list` counts from the beginning of each table"
    console.print_text(Text(about, style="dim"))
    for name, job in statuses:
        if line := views.freshness(settings, name):
            console.print_text(line)
        for line in filter(None, (*views.lookups(job), views.place(job))):
            console.print_text(f"{name}: {line}")
        for line in views.troubles(settings, name, job):
            console.print_text(Text(f"{name}: {line}", style="red"))


@stream.command()
def top(
    pipelines: Pipelines = None,
    seconds: Annotated[
        float | None, typer.Option(help="End after so many seconds; by default at Ctrl-C")
    ] = None,
) -> None:
    """Watch streaming jobs, every second: state, restarts and why, memory, rate, lag by partition of a topic."""
    import time

    from rich.live import Live

    from streaming_jobs.command_groups import views

    lakehouse, named = _chosen(pipelines)
    settings = lakehouse.settings
    end = time.monotonic() + seconds if seconds is not None else float("inf")
    try:
        with Live(views.top(settings, named), console=console.out(), auto_refresh=False) as live:
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(1.0, left))
                live.update(views.top(settings, named), refresh=True)
    except KeyboardInterrupt:
        pass


@stream.command()
def supervise(
    pipelines: Pipelines = None,
    every: Annotated[
        float,
        typer.Option(
            help="Seconds between two checks; a process that ends is noticed at once", min=0.1
        ),
    ] = 2,
) -> None:
    """Keep streaming jobs, and the followers of their tables, in their desired state until Ctrl-C, as Dagster's sensor does."""
    from lakehouse.stopping import by_signals
    from streaming_jobs import progress
    from streaming_jobs.exporters import notifications
    from streaming_jobs.supervision import control_loop
    from streaming_jobs.supervision.jobs import with_followers

    lakehouse, chosen = _chosen(pipelines)
    settings, named = lakehouse.settings, with_followers(lakehouse.catalog, chosen)
    troubles: dict[str, str] = {}
    with by_signals() as stopping:
        while not control_loop.wait(settings, named, stopping, every):
            for pipeline in named:
                decision = control_loop.step(settings, pipeline)
                trouble = decision.why if decision.trouble else ""
                new, troubles[pipeline] = trouble != troubles.get(pipeline, ""), trouble
                if decision.action != "nothing" or (trouble and new):
                    console.print_text(
                        f"{progress.now()} {pipeline}: {decision.action}, {decision.why}"
                    )
            notices = [notice for job in named for notice in notifications.of_job(settings, job)]
            for failure in notifications.send(settings, notices):
                console.print_text(f"{progress.now()} {failure}")


@stream.command()
def run(pipeline: Annotated[str, typer.Argument(help="The pipeline")]) -> None:
    """Run a streaming job in this process, until Ctrl-C or SIGTERM, which drain it; what a container runs.

    Whatever runs this command keeps the job running, and no supervisor does. A scheduled pipeline
    is run once.
    """
    from streaming_jobs.supervision import foreground

    lakehouse, _ = _chosen([pipeline])
    raise typer.Exit(foreground.run(lakehouse.settings, pipeline))


@stream.command()
def logs(
    pipeline: str, lines: Annotated[int, typer.Option(help="The number of lines")] = 40
) -> None:
    """Print the end of a streaming job's log."""
    from streaming_jobs.supervision import desired, job_logs

    settings = _chosen([pipeline])[0].settings
    wanted = desired.read(settings, pipeline)
    if wanted and wanted.state == "unsupervised":
        console.print_note(
            f"{pipeline}: `{wanted.by}` logs where it runs; these lines are of a former process"
        )
    print(job_logs.log_tail(settings, pipeline, lines))


def _show_started(settings: "Settings", status: "JobStatus") -> None:
    from streaming_jobs.supervision import job_logs, scheduled

    name = status.pipeline
    log = job_logs.log_path(settings, name)
    console.print_text(f"{name}: {status.state}, pid {status.pid}, log {log}")
    if status.ui and status.alive:
        console.print_text(f"{name}: Spark's pages {status.ui}")
    if settings.freshness_of(name).cron:
        with console.working(f"running {name} up to the present"):
            scheduled.await_end(settings, name, status.pid)
        console.print_text(f"{name}: {scheduled.summary(settings, name)}")


def _remark(settings: "Settings", pipeline: str) -> None:
    """Shows warnings about what the pipeline declares; its job writes them to its log, too."""
    from lakehouse.storage.lakehouse import load
    from lakehouse.storage.position import declared_state

    lakehouse = load(settings.for_pipeline(pipeline))
    for line in declared_state.remarks(lakehouse, lakehouse.catalog.of_pipeline(pipeline)):
        console.print_note(f"warning: {line}")


def _by(command: str) -> str:
    import psutil

    return f"{psutil.Process().username()} (lakehouse {command})"


def _chosen(pipelines: list[str] | None) -> "tuple[Lakehouse, list[str]]":
    lakehouse = opening.lakehouse()
    for name in pipelines or ():
        lakehouse.catalog.of_pipeline(name)
    return lakehouse, pipelines or lakehouse.catalog.pipelines()
