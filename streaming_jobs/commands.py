"""The commands of the `lakehouse` command line that have to do with streaming jobs."""

import json
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli.console import group
from streaming_jobs import topic_commands

if TYPE_CHECKING:
    from rich.console import Console

    from lakehouse.settings import Settings
    from streaming_jobs.progress import JobStatus

stream = group("Streaming jobs: start, stop, watch and supervise them.")
app = group(groups={"stream": stream, "topic": topic_commands.group})

_PIPELINES = Annotated[list[str] | None, typer.Argument(help="Pipelines; all if none is named")]
_WAIT = Annotated[
    float | None, typer.Option(help="Seconds until it must run; by default LAKEHOUSE_START_WITHIN")
]
_DRAIN = Annotated[float, typer.Option(help="Seconds to drain")]
_NOW = Annotated[
    bool, typer.Option("--now", help="Kill instead of drain: it resumes where it was all the same")
]


@stream.command()
def start(pipelines: _PIPELINES = None, wait: _WAIT = None) -> None:
    """Start streaming jobs, each a process of its own that goes on when this command ends.

    A scheduled one is run up to the present, which is waited for, and then by its schedule.
    """
    from rich.console import Console

    from streaming_jobs import supervisor

    console, settings, named = _chosen(pipelines)
    for pipeline in named:
        _remark(settings, pipeline)
        with Console(stderr=True).status(f"starting {pipeline}"):
            status = supervisor.start(settings, pipeline, wait=wait, by=_by("start"))
        _tell_started(console, settings, status)


@stream.command()
def stop(pipelines: _PIPELINES = None, timeout: _DRAIN = 60, now: _NOW = False) -> None:
    """Drain and stop streaming jobs; what they had read goes through every table first."""
    from rich.console import Console

    from streaming_jobs import supervisor

    console, settings, named = _chosen(pipelines)
    for pipeline in reversed(named):
        with Console(stderr=True).status(f"stopping {pipeline}"):
            status = supervisor.stop(settings, pipeline, timeout=timeout, now=now, by=_by("stop"))
        console.print(f"{pipeline}: {status.state if status else 'never ran'}")


@stream.command()
def restart(
    pipelines: _PIPELINES = None, wait: _WAIT = None, timeout: _DRAIN = 60, now: _NOW = False
) -> None:
    """Stop and start streaming jobs; paused queries are tried again."""
    from rich.console import Console

    from streaming_jobs import supervisor

    console, settings, named = _chosen(pipelines)
    for pipeline in named:
        _remark(settings, pipeline)
        with Console(stderr=True).status(f"restarting {pipeline}"):
            status = supervisor.restart(
                settings, pipeline, timeout=timeout, now=now, wait=wait, by=_by("restart")
            )
        _tell_started(console, settings, status)


@stream.command()
def status(
    pipelines: _PIPELINES = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per job and line")
    ] = False,
) -> None:
    """Show the state of streaming jobs and of each of their queries."""
    from rich.text import Text

    from streaming_jobs import scheduled, supervisor, views

    console, settings, named = _chosen(pipelines)
    found = [(name, supervisor.status(settings, name)) for name in named]
    if as_json:
        for name, each in found:
            due = scheduled.next_run(settings, name)
            knob = {
                "freshness": str(settings.freshness_of(name)),
                "next_run": due and due.isoformat(),
            }
            print(
                json.dumps(
                    (asdict(each) if each else {"pipeline": name, "state": "never ran"}) | knob
                )
            )
        return
    console.print(views.queries_table(found))
    console.print(
        Text(
            "counted since each job was started; `lakehouse table list` counts all there ever was",
            style="dim",
        )
    )
    for name, each in found:
        if told := views.freshness(settings, name):
            console.print(Text(told), soft_wrap=True)
        if told := views.place(each):
            console.print(Text(f"{name}: {told}"), soft_wrap=True)
        for told in views.troubles(settings, name, each):
            console.print(Text(f"{name}: {told}", style="red"), soft_wrap=True)


@stream.command()
def top(
    pipelines: _PIPELINES = None,
    seconds: Annotated[
        float | None, typer.Option(help="End after that long; else with Ctrl-C")
    ] = None,
) -> None:
    """Watch streaming jobs: state, restarts and why, memory, rate, lag by partition of a topic, every second."""
    import time

    from rich.live import Live

    from streaming_jobs import views

    console, settings, named = _chosen(pipelines)
    end = time.monotonic() + seconds if seconds is not None else float("inf")
    try:
        with Live(views.top(settings, named), console=console, auto_refresh=False) as live:
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(1.0, left))
                live.update(views.top(settings, named), refresh=True)
    except KeyboardInterrupt:
        pass


@stream.command()
def supervise(
    pipelines: _PIPELINES = None,
    every: Annotated[
        float, typer.Option(help="Seconds between two looks; at once when a process ends", min=0.1)
    ] = 2,
) -> None:
    """Keep streaming jobs as they were asked to be, until Ctrl-C: what Dagster's sensor does, for those without it."""
    import signal
    import threading

    from streaming_jobs import notices, notifications, progress, reconciler

    console, settings, named = _chosen(pipelines)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    troubles: dict[str, str] = {}
    while not reconciler.wait(settings, named, stopping, every):
        for pipeline in named:
            decision = reconciler.reconcile(settings, pipeline)
            trouble = decision.why if decision.trouble else ""
            new, troubles[pipeline] = trouble != troubles.get(pipeline, ""), trouble
            if decision.action != "nothing" or (trouble and new):
                console.print(
                    f"{progress.now()} {pipeline}: {decision.action}, {decision.why}",
                    soft_wrap=True,
                    markup=False,
                )
        for failure in notifications.tell(
            settings, [n for pipeline in named for n in notices.of_job(settings, pipeline)]
        ):
            console.print(f"{progress.now()} {failure}", soft_wrap=True, markup=False)


@stream.command()
def logs(
    pipeline: str, lines: Annotated[int, typer.Option(help="How many of the last lines")] = 40
) -> None:
    """Print the end of a streaming job's log."""
    from streaming_jobs import supervisor

    _, settings, (name,) = _chosen([pipeline])
    print(supervisor.log_tail(settings, name, lines))


@app.command()
def metrics(
    once: Annotated[bool, typer.Option("--once", help="Print them and end")] = False,
    host: Annotated[
        str | None, typer.Option(help="Where to listen; nobody is asked who they are")
    ] = None,
    port: Annotated[int | None, typer.Option(help="0 for any that is free")] = None,
) -> None:
    """Serve metrics of jobs, tables, reconciliations and results to Prometheus, until Ctrl-C."""
    from prometheus_client.openmetrics.exposition import generate_latest

    from lakehouse.declare import catalog
    from lakehouse.settings import from_environment
    from streaming_jobs import metrics as exporter

    settings = from_environment()
    settings = replace(
        settings,
        metrics_host=settings.metrics_host if host is None else host,
        metrics_port=settings.metrics_port if port is None else port,
    )
    loaded = catalog.load(settings)
    if once:
        typer.echo(generate_latest(exporter.registry(settings, loaded)).decode(), nl=False)
        return
    server, thread = exporter.serve(settings, loaded)
    typer.echo(f"http://{settings.metrics_host}:{server.server_port}/metrics")
    with suppress(KeyboardInterrupt):
        thread.join()


@app.command()
def lineage(
    to: Annotated[
        str, typer.Option(help="A URL, or a file; else what OpenLineage's own configuration names")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Send what is due and end")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks", min=0.1)] = 10,
) -> None:
    """Send OpenLineage events of live and batch runs, until Ctrl-C.

    What cannot be sent is sent later.
    """
    import time

    from lakehouse.declare import catalog
    from lakehouse.settings import from_environment
    from streaming_jobs import lineage as teller

    settings = from_environment()
    lineage = teller.Lineage(settings, catalog.load(settings), teller.client(to))
    with suppress(KeyboardInterrupt):
        while True:
            try:
                if (sent := lineage.tell()) or once:
                    typer.echo(f"{sent} events sent")
            except OSError as err:  # those of the network among them
                told = f"to={to!r}: every event is to be taken, and was not ({err}); the next look sends what is left"
                typer.echo(told, err=True)
                if once:
                    raise typer.Exit(1) from err
            if once:
                return
            time.sleep(every)


def _tell_started(console: "Console", settings: "Settings", status: "JobStatus") -> None:
    from streaming_jobs import scheduled, supervisor

    name = status.pipeline
    console.print(
        f"{name}: {status.state}, pid {status.pid}, log {supervisor.log_path(settings, name)}",
        soft_wrap=True,
    )
    if status.ui and status.alive:
        console.print(f"{name}: Spark's pages {status.ui}", soft_wrap=True)
    if settings.freshness_of(name).cron:
        with console.status(f"running {name} up to the present"):
            scheduled.await_end(settings, name, status.pid)
        console.print(f"{name}: {scheduled.told(settings, name)}", soft_wrap=True, markup=False)


def _remark(settings: "Settings", pipeline: str) -> None:
    """Says what of the pipeline is not as it seems to be; its job says so in its log, too."""
    from lakehouse.cli.console import print_note
    from lakehouse.declare import catalog
    from lakehouse.storage import begun_with

    known = catalog.load(settings)
    for told in begun_with.remarks(
        settings.for_pipeline(pipeline), known, known.of_pipeline(pipeline)
    ):
        print_note(f"warning: {told}")


def _by(command: str) -> str:
    import psutil

    return f"{psutil.Process().username()} (lakehouse {command})"


def _chosen(pipelines: list[str] | None):
    from lakehouse.cli.console import out
    from lakehouse.declare import catalog
    from lakehouse.settings import from_environment

    settings = from_environment()
    known = catalog.load(settings)
    for name in pipelines or ():
        known.of_pipeline(name)
    return out(), settings, pipelines or known.pipelines()
