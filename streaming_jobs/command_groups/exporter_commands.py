"""The commands `board`, `metrics` and `lineage`: what is shown, or sent to other systems, until Ctrl-C."""

from contextlib import suppress
from dataclasses import replace
from typing import Annotated

import typer

from lakehouse.cli import console, opening
from lakehouse.cli.console import Port


def metrics(
    once: Annotated[bool, typer.Option("--once", help="Print the metrics and exit")] = False,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; there is no authentication")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port; 0 for any that is free")] = None,
) -> None:
    """Serve metrics of jobs, tables, certificates and results to Prometheus, until Ctrl-C."""
    from prometheus_client import generate_latest

    from lakehouse.settings import from_environment
    from lakehouse.storage.lakehouse import load
    from streaming_jobs.exporters import metrics as exporter

    settings = from_environment()
    settings = replace(
        settings,
        metrics_host=settings.metrics_host if host is None else host,
        metrics_port=settings.metrics_port if port is None else port,
    )
    lakehouse = load(settings)
    if once:
        typer.echo(generate_latest(exporter.registry(lakehouse)).decode(), nl=False)
        return
    server, thread = exporter.serve(lakehouse)
    console.print_text(f"http://{settings.metrics_host}:{server.server_port}/metrics")
    with suppress(KeyboardInterrupt):
        thread.join()


def board(
    host: Annotated[
        str, typer.Option(help="An address of this machine; there is no authentication")
    ] = "127.0.0.1",
    port: Port = 8182,
) -> None:
    """Show jobs, tables, verdicts and targets on a page that is live, until Ctrl-C. Needs no JVM and changes nothing."""
    from streaming_jobs.board import server

    server.run(opening.lakehouse(), host, port)


def lineage(
    to: Annotated[
        str, typer.Option(help="A URL or a file; by default what OpenLineage's configuration names")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Send what is due and exit")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two checks", min=0.1)] = 10,
) -> None:
    """Send OpenLineage events of streams and batch runs, until Ctrl-C.

    An event that cannot be sent is sent later.
    """
    import time

    from streaming_jobs.exporters import lineage as sender

    lakehouse = opening.lakehouse()
    lineage = sender.Lineage(lakehouse.settings, lakehouse.catalog, sender.client(to))
    with suppress(KeyboardInterrupt):
        while True:
            try:
                if (sent := lineage.send()) or once:
                    console.print_text(f"{sent} events sent")
            except OSError as err:  # those of the network among them
                line = (
                    f"to={to!r}: an event could not be sent ({err}); the next check sends it again"
                )
                console.print_note(line)
                if once:
                    raise typer.Exit(1) from err
            if once:
                return
            time.sleep(every)
