"""`lakehouse demo`: the whole system at work on this machine, and its reconciliation at the end.

It starts the board, a broker, producers that first write history and then events of the present, the
streaming jobs of every shipped pipeline, and the Dagster UI and daemon. Ctrl-C ends all of them, in an
order that loses nothing.
"""

import signal
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assets.parts import Parts
from assets.tour.command import tour
from assets.ui import app, dagster_dev, dagster_environment
from lakehouse.settings import Settings
from lakehouse.stopping import Stop

if TYPE_CHECKING:
    from rich.text import Text

    from lakehouse.declare.table import Table
    from lakehouse.storage.log.certificates import Certificate

_BATCH = 200_000
# events per second of each pipeline: two cores also start two jobs and Dagster meanwhile
_RATE = 200


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(help="Run for so many seconds, drain and reconcile; by default until Ctrl-C"),
    ] = None,
    history: Annotated[
        str, typer.Option(help="How much past is written before the present, on the first run")
    ] = "2 hours",
    port: Annotated[int, typer.Option(help="The port of the Dagster UI")] = 3000,
    ui: Annotated[bool, typer.Option(help="Start the board, and the Dagster UI and daemon")] = True,
) -> None:
    """Start everything and show it at work.

    With --seconds, the demo ends with a reconciliation: exit code 0 only if every range is EQUAL.
    """
    from lakehouse.cli.console import out
    from lakehouse.settings import from_environment

    console, stopping = out(), Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    settings = from_environment(required=False)
    shown: dict[str, Any] = {
        # smaller micro-batches than the default: less throughput, more to see
        "max_offsets_per_trigger": min(_BATCH, settings.max_offsets_per_trigger),
        # partition bars that begin where the demo's history does
        "since": (datetime.now(UTC) - timedelta(days=1)).date().isoformat(),
    }
    stage = _Demo(replace(settings, **shown), console, stopping)
    try:
        with console.status("starting"):  # one status for all parts: some start side by side
            stage.start(history, port if ui else None)
        stage.watch(port if ui else None, seconds)
        interrupted = stopping.is_set()
        stage.parts.end("producers", "jobs")
        if seconds is not None and not interrupted:
            raise typer.Exit(stage.reconcile())
    finally:
        stage.parts.end("producers", "jobs", "ui", "board", "broker")


class _Demo:
    """Starts and shows the parts of the demo."""

    def __init__(self, settings: Settings, console, stopping: Stop) -> None:
        self.settings, self.console, self.stopping = settings, console, stopping
        self.parts = Parts(settings, console, stopping, lambda: dagster_environment(settings))
        self.board = ""  # its address

    def start(self, history: str, port: int | None) -> None:
        from lakehouse.declare import catalog
        from lakehouse.runtime import jars, kafka_broker

        settings = self.settings
        where = f", the page of Dagster (port {port}) is printed when it is up" if port else ""
        self.console.print(
            f"[dim]a minute or two until all of it runs{where}; data in {settings.root}[/dim]"
        )
        if port:
            self.board = self.parts.start_board()
        if not settings.bootstrap_servers:
            self.parts.begin(
                "Kafka broker",
                "broker",
                lambda: kafka_broker.stop(settings),
                lambda: kafka_broker.start(settings, jars.resolve(settings.jars)),
            )
        loaded = catalog.load(settings)
        first, *others = loaded.pipelines()
        for pipeline in (first, *others):
            for member in settings.members(pipeline):
                self._produce(member, history)
        self._job(first)  # alone, so that it has rows to show soon
        # the UI starts together with the other jobs, and does not wait for their catch-up
        with ThreadPoolExecutor(1) as beside:
            ui = beside.submit(self._ui, port, loaded) if port else None
            for pipeline in others:
                self._job(pipeline)
            if ui:
                ui.result()

    def _job(self, pipeline: str) -> None:
        from streaming_jobs.supervision import supervisor

        self.parts.begin(
            f"streaming job {pipeline}",
            "jobs",
            lambda: supervisor.stop(self.settings, pipeline, by="lakehouse demo"),
            lambda: supervisor.start(self.settings, pipeline, wait=300, by="lakehouse demo"),
        )

    def _ui(self, port: int, tables: "Iterable[Table]") -> None:
        address = f"http://localhost:{port}"
        text = f"Dagster UI on {lineage(address, tables)}"
        command = dagster_dev(port, ["-m", "assets.definitions"])
        ready = partial(self.parts.await_page, f"{address}/server_info", "dagster.log")
        self.parts.process("ui", text, command, "dagster.log", ready)

    def watch(self, port: int | None, seconds: float | None) -> None:
        """Shows the tables until the time is over or someone stops the demo."""
        from rich.live import Live

        end = time.monotonic() + seconds if seconds is not None else float("inf")
        with Live(console=self.console, auto_refresh=False) as live:
            while not self.stopping.is_set() and time.monotonic() < end:
                live.update(self._shown(port, end - time.monotonic()), refresh=True)
                self.stopping.wait(min(1.0, max(end - time.monotonic(), 0)))
        if not self.console.is_terminal:  # where `Live` does not end its last line
            self.console.line()

    def reconcile(self) -> int:
        """Reconciles every derived table up to its frontier; returns 0 only if each has rows there and is EQUAL."""
        from lakehouse.cli import console
        from lakehouse.declare import catalog
        from lakehouse.errors import LakehouseError
        from lakehouse.reconcile import reconciliation
        from lakehouse.runtime import spark_session
        from lakehouse.storage.session import Session

        loaded = catalog.load(self.settings)
        with self.console.status("reconciling: every range again, in batch"):
            certificates = []
            streamed = (t for t in (*loaded.derived, *loaded.keyed) if t.kind.is_streamed)
            tables = [t for t in streamed if t.deterministic]
            with spark_session.opened(self.settings, "demo reconciliation") as spark:
                session = Session(self.settings, loaded, spark)
                for table in tables:
                    try:
                        certificates.append(reconciliation.reconcile(session, table))
                    except LakehouseError as err:
                        self.console.print(f"[red]{err}[/red]")
        console.print_columns(
            certificates,
            {
                "table": lambda c: c.table,
                "range": lambda c: f"[{console.shown(c.start)}, {console.shown(c.end)})",
                "rows in table": lambda c: c.rows_in_table,
                "rows recomputed": lambda c: c.rows_recomputed,
                "seconds": lambda c: f"{c.seconds:.1f}",
                "verdict": _verdict,
            },
            title="the reconciliation",
        )
        for certificate in certificates:
            for example in certificate.examples:
                self.console.print(f"[red]{certificate.table}: {example}[/red]")
        reconciled = [c for c in certificates if c.verdict == "EQUAL" and c.rows_recomputed > 0]
        summary = f"reconciled: {len(reconciled)} of {len(tables)} tables"
        if len(reconciled) < len(tables):
            self.console.print(f"[red]{summary}[/red]")
            return 1
        self.console.print(f"[green]{summary}, stream = batch[/green]")
        return 0

    def _produce(self, pipeline: str, history: str) -> None:
        from lakehouse.producers import registry

        producer = registry.find(self.settings, pipeline)
        if producer is None:
            return  # its topics are filled by others
        new = registry.ensure_topics(self.settings, producer, producer.workload.partitions)
        past = ["--history", history] if new else []  # a second run continues from now
        rate = ["--rate", str(min(producer.workload.rate, _RATE))]
        command = [sys.executable, "-m", "lakehouse", "produce", pipeline, "--live", "--json"]
        what = f"{history} of history, then the present" if past else "the present"
        text = f"producer of {pipeline}: {what}"
        self.parts.process("producers", text, [*command, *past, *rate], f"producer_{pipeline}.log")

    def _shown(self, port: int | None, left: float):
        from rich.console import Group

        from lakehouse.declare import catalog
        from lakehouse.storage.log import certificates
        from streaming_jobs.command_groups.views import queries_table
        from streaming_jobs.supervision import supervisor

        loaded = catalog.load(self.settings)
        pipelines = loaded.pipelines()
        given = certificates.certificates(self.settings)
        last = {c.table: f"{c.verdict} {c.at:%H:%M:%S}" for c in given}
        jobs = queries_table([(p, supervisor.status(self.settings, p)) for p in pipelines], last)
        until = f"{left:.0f} s left" if left != float("inf") else "Ctrl-C ends everything"
        if port is None:
            return Group(jobs, f"Dagster: (not started) · {until}")
        address = f"http://localhost:{port}"
        page = f"[link={lineage(address, loaded)}]{address}/asset-groups[/link]"
        pages = f"board: [bold]{self.board}[/bold] · Dagster: [bold]{page}[/bold]"
        return Group(jobs, f"{pages} · {until}")


def lineage(address: str, tables: "Iterable[Table]") -> str:
    """Returns the address of Dagster's lineage in which each table is seen: its groups are folded by default."""
    groups = dict.fromkeys(("sources", "streaming_jobs", *(table.layer for table in tables)))
    return f"{address}/asset-groups?expanded=" + ",".join(f"global@global:{g}" for g in groups)


def _verdict(certificate: "Certificate") -> "Text | str":
    """Returns the verdict; EQUAL without a row is red, since the demo does not count it."""
    from rich.text import Text

    if certificate.verdict == "EQUAL" and not certificate.rows_recomputed:
        return Text("EQUAL, no row compared", style="bold red")
    return certificate.verdict


for command in (demo, tour):
    app.command()(command)
