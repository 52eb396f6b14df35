"""The commands start, stop, status, logs and metrics of the `lakehouse` command line."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Annotated

import typer

app = typer.Typer()

_PIPELINES = Annotated[list[str] | None, typer.Argument(help="Pipelines; all if none is named")]


@app.command()
def start(
    pipelines: _PIPELINES = None, wait: Annotated[float, typer.Option(help="Seconds until it must run")] = 120
) -> None:
    """Start streaming jobs, each a process of its own that goes on when this command ends."""
    from rich.console import Console

    from streaming_jobs import supervisor

    console, settings, named = _chosen(pipelines)
    for pipeline in named:
        with Console(stderr=True).status(f"starting {pipeline}"):
            status = supervisor.start(settings, pipeline, wait=wait)
        console.print(f"{pipeline}: {status.state}, pid {status.pid}, log {supervisor.log_path(settings, pipeline)}")


@app.command()
def stop(pipelines: _PIPELINES = None, timeout: Annotated[float, typer.Option(help="Seconds to drain")] = 60) -> None:
    """Drain and stop streaming jobs; what they had read goes through every table first."""
    from rich.console import Console

    from streaming_jobs import supervisor

    console, settings, named = _chosen(pipelines)
    for pipeline in reversed(named):
        with Console(stderr=True).status(f"stopping {pipeline}"):
            status = supervisor.stop(settings, pipeline, timeout=timeout)
        console.print(f"{pipeline}: {status.state if status else 'never ran'}")


@app.command()
def status(
    pipelines: _PIPELINES = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per job and line")] = False,
) -> None:
    """Show the state of streaming jobs and of each of their queries."""
    from streaming_jobs import supervisor

    console, settings, named = _chosen(pipelines)
    found = [(name, supervisor.status(settings, name)) for name in named]
    if as_json:
        for name, each in found:
            print(json.dumps(asdict(each) if each else {"pipeline": name, "state": "never ran"}))
        return
    console.print(queries_table(found))
    for name, each in found:
        if each and each.error:
            console.print(f"[red]{name}: {each.error}[/red]")


@app.command()
def logs(pipeline: str, lines: Annotated[int, typer.Option(help="How many of the last lines")] = 40) -> None:
    """Print the end of a streaming job's log."""
    from streaming_jobs import supervisor

    _, settings, (name,) = _chosen([pipeline])
    print(supervisor.log_tail(settings, name, lines))


@app.command()
def metrics(
    once: Annotated[bool, typer.Option("--once", help="Print them and end")] = False,
    host: Annotated[str | None, typer.Option(help="Where to listen; nobody is asked who they are")] = None,
    port: Annotated[int | None, typer.Option(help="0 for any that is free")] = None,
) -> None:
    """Serve metrics of jobs, tables, proofs and results to Prometheus, until Ctrl-C."""
    from prometheus_client.openmetrics.exposition import generate_latest

    from lakehouse import catalog
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


def queries_table(found: Iterable[tuple[str, object]], certificates: Mapping[str, str] | None = None):
    """Jobs and their queries as a rich table; with `certificates` (table -> text) a column of them."""
    from rich.table import Table

    table = Table("job", "state", "table", box=None, header_style="bold")
    for column in ("rows/s", "rows", "lag", "late", "quarantined", "batch s"):
        table.add_column(column, justify="right")
    table.add_column("frontier")
    if certificates is not None:
        table.add_column("last certificate")
    for name, status in found:
        if status is None:
            table.add_row(name, "never ran")
            continue
        for i, q in enumerate(status.queries or (None,)):
            first = (name, _coloured(status.state)) if i == 0 else ("", "")
            if q is None:
                table.add_row(*first)
                continue
            late = f"{q.late:,}" + (f" [red](Spark dropped {q.dropped_by_spark})[/red]" if q.dropped_by_spark else "")
            counts = (f"{q.rows_per_second:,.0f}", f"{q.rows:,}", f"{q.lag:,}", late, f"{q.quarantined:,}")
            table.add_row(*first, q.table, *counts, f"{q.batch_seconds:.1f}", (q.frontier or "")[:19],
                          *([certificates.get(q.table, "")] if certificates is not None else []))  # fmt: skip
    return table


def _coloured(state: str) -> str:
    colour = {"running": "green", "starting": "yellow", "stopping": "yellow", "stopped": "dim"}.get(state, "red")
    return f"[{colour}]{state}[/{colour}]"


def _chosen(pipelines: list[str] | None):
    from rich.console import Console

    from lakehouse import catalog
    from lakehouse.settings import from_environment

    settings = from_environment()
    known = catalog.load(settings)
    for name in pipelines or ():
        known.of_pipeline(name)
    return Console(), settings, pipelines or known.pipelines()
