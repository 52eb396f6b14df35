"""`lakehouse demo`: the whole system at work on this machine, and its reconciliation at the end.

It starts the board, a broker, producers that first write history and then events of the present, the
streaming jobs of every shipped pipeline, and the Dagster UI and daemon. Ctrl-C ends all of them, in an
order that loses nothing.
"""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assets.ui import app, dagster_dev, dagster_environment
from lakehouse.settings import Settings
from lakehouse.stopping import Stop

if TYPE_CHECKING:
    from rich.text import Text

    from lakehouse.declare.table import Table
    from lakehouse.storage.log.certificates import Certificate

_BATCH = 200_000
_UI_WITHIN = 300.0  # seconds
_BOARD = 8182  # its port, unless it is taken
# events per second of each pipeline: two cores also start two jobs and Dagster meanwhile
_RATE = 200


@app.command()
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
        stage.end("producers", "jobs")
        if seconds is not None and not interrupted:
            raise typer.Exit(stage.reconcile())
    finally:
        stage.end("producers", "jobs", "ui", "broker")


class _Demo:
    """The running parts, by the name under which they are ended."""

    def __init__(self, settings: Settings, console, stopping: Stop) -> None:
        self.settings, self.console, self.stopping = settings, console, stopping
        self.running: dict[str, list[Callable[[], object]]] = {}
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
            self._board()
        if not settings.bootstrap_servers:
            self._step(
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

        self._step(
            f"streaming job {pipeline}",
            "jobs",
            lambda: supervisor.stop(self.settings, pipeline, by="lakehouse demo"),
            lambda: supervisor.start(self.settings, pipeline, wait=300, by="lakehouse demo"),
        )

    def _board(self) -> None:
        port = _free_port(_BOARD)
        self.board = f"http://localhost:{port}/"
        command = [sys.executable, "-m", "lakehouse", "board", "--port", str(port)]
        ready = partial(self._await, self.board, "board.log")
        text = f"the board on {self.board}: jobs, tables and verdicts, live"
        self._process("ui", text, command, "board.log", ready)

    def _ui(self, port: int, tables: "Iterable[Table]") -> None:
        address = f"http://localhost:{port}"
        text = f"Dagster UI on {lineage(address, tables)}"
        command = dagster_dev(port, ["-m", "assets.definitions"])
        ready = partial(self._await, f"{address}/server_info", "dagster.log")
        self._process("ui", text, command, "dagster.log", ready)

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

    def end(self, *parts: str) -> None:
        """Ends the running ones of these parts. Raises JobError at the end if a part could not be ended."""
        from lakehouse.errors import JobError

        failed = []
        for part in parts:
            for stop in self.running.pop(part, []):
                try:
                    with self.console.status(f"ending {part}"):
                        stop()
                except Exception as err:  # else all later parts would run on
                    failed.append((part, err))
        if failed:
            errors = "; ".join(f"{part}: {type(err).__name__}: {err}" for part, err in failed)
            raise JobError(
                f"demo={self.settings.root}: all of it must end, and some of it may run on ({errors}); `lakehouse stream status` "
                "and `lakehouse broker status` show what"
            ) from failed[0][1]

    def _step(
        self, text: str, part: str, stop: Callable[[], object], begin: Callable[[], object]
    ) -> None:
        if self.stopping.is_set():
            return
        self.running.setdefault(part, []).append(stop)
        began = time.monotonic()
        begin()
        seconds = time.monotonic() - began
        # an address stays in one piece, however narrow the terminal is
        self.console.print(f"[green]✓[/green] {text} [dim]{seconds:.1f} s[/dim]", soft_wrap=True)

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
        self._process("producers", text, [*command, *past, *rate], f"producer_{pipeline}.log")

    def _await(self, address: str, log_name: str, process: subprocess.Popen) -> None:
        """Returns when a page answers, or somebody stops the demo. Raises JobError if its process ends, or takes too long."""
        from lakehouse.errors import JobError
        from lakehouse.storage.disk import layout

        log = layout.demo_logs(self.settings) / log_name
        deadline = time.monotonic() + _UI_WITHIN
        while not self.stopping.wait(0.2) and not _answers(address):
            if process.poll() is not None:
                raise JobError(
                    f"page={address}: its process ended while it started (exit code {process.returncode}), perhaps because the "
                    f"port is taken; see {log}, or choose another --port"
                )
            if time.monotonic() > deadline:
                raise JobError(
                    f"page={address}: it must answer within {_UI_WITHIN:.0f} s and did not; see {log}, or use --no-ui"
                )

    def _process(
        self,
        part: str,
        text: str,
        command: list[str],
        log: str,
        ready: Callable[[subprocess.Popen], None] = lambda process: None,
    ) -> None:
        from lakehouse.storage.disk import layout

        folder = layout.demo_logs(self.settings)
        folder.mkdir(parents=True, exist_ok=True)
        environment = dagster_environment(self.settings)

        def begin() -> None:
            # a session of its own: Ctrl-C reaches the demo alone
            with (folder / log).open("ab") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
            self.running[part].append(lambda: _end_tree(process))
            ready(process)

        self._step(text, part, lambda: None, begin)

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


def _free_port(wanted: int) -> int:
    """Returns the port, or any other one if it is taken."""
    for port in (wanted, 0):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as free:
            return free.getsockname()[1]
    return wanted


def _answers(address: str) -> bool:
    from urllib.request import urlopen

    try:
        with urlopen(address, timeout=5):
            return True
    except OSError:  # also what urllib raises
        return False


def _end_tree(process: subprocess.Popen) -> None:
    """Ends a process and all that it started; kills what is left after 20 seconds."""
    import psutil

    if process.poll() is None:
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGINT)
        _, left = psutil.wait_procs(tree, timeout=20)
        for each in left:
            each.kill()
        psutil.wait_procs(left, timeout=5)
    process.wait()


def _verdict(certificate: "Certificate") -> "Text | str":
    """Returns the verdict; EQUAL without a row is red, since the demo does not count it."""
    from rich.text import Text

    if certificate.verdict == "EQUAL" and not certificate.rows_recomputed:
        return Text("EQUAL, no row compared", style="bold red")
    return certificate.verdict
