"""The running parts of the demo and of the tour: each is started with a line that says so, and ended with its command."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from lakehouse.settings import Settings
from lakehouse.stopping import Stop

if TYPE_CHECKING:
    from rich.console import Console

_PAGE_WITHIN = 300.0  # seconds
_BOARD = 8182  # its port, unless it is taken


class Parts:
    """The running parts, by the name under which they are ended.

    :param environment: returns that of the processes.
    """

    def __init__(
        self,
        settings: Settings,
        console: "Console",
        stopping: Stop,
        environment: Callable[[], Mapping[str, str]],
    ) -> None:
        self.settings, self.console, self.stopping = settings, console, stopping
        self.environment = environment
        self.running: dict[str, list[Callable[[], object]]] = {}

    def begin(
        self, text: str, part: str, stop: Callable[[], object], start: Callable[[], object]
    ) -> None:
        """Starts a part and says how long that took, unless somebody stops the command."""
        if self.stopping.is_set():
            return
        self.running.setdefault(part, []).append(stop)
        began = time.monotonic()
        start()
        seconds = time.monotonic() - began
        # an address stays in one piece, however narrow the terminal is
        self.console.print(f"[green]✓[/green] {text} [dim]{seconds:.1f} s[/dim]", soft_wrap=True)

    def process(
        self,
        part: str,
        text: str,
        command: list[str],
        log: str,
        ready: Callable[[subprocess.Popen], None] = lambda process: None,
    ) -> None:
        """Starts a process as a part, its output appended to a log, and returns once it is `ready`."""
        from lakehouse.storage.disk import layout

        folder = layout.demo_logs(self.settings)
        folder.mkdir(parents=True, exist_ok=True)
        environment = self.environment()

        def start() -> None:
            # a session of its own: Ctrl-C reaches the command alone
            with (folder / log).open("ab") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
            self.running[part].append(lambda: end_tree(process))
            ready(process)

        self.begin(text, part, lambda: None, start)

    def await_page(self, address: str, log_name: str, process: subprocess.Popen) -> None:
        """Returns when a page answers, or somebody stops the command. Raises JobError if its process ends, or takes too long."""
        from lakehouse.errors import JobError
        from lakehouse.storage.disk import layout

        log = layout.demo_logs(self.settings) / log_name
        deadline = time.monotonic() + _PAGE_WITHIN
        while not self.stopping.wait(0.2) and not answers(address):
            if process.poll() is not None:
                raise JobError(
                    f"page={address}: its process ended while it started (exit code {process.returncode}), perhaps because the "
                    f"port is taken; see {log}, or choose another --port"
                )
            if time.monotonic() > deadline:
                raise JobError(
                    f"page={address}: it must answer within {_PAGE_WITHIN:.0f} s and did not; see {log}, or use --no-ui"
                )

    def start_board(self) -> str:
        """Starts the board, and returns its address."""
        port = _free_port(_BOARD)
        address = f"http://localhost:{port}/"
        command = [sys.executable, "-m", "lakehouse", "board", "--port", str(port)]
        ready = partial(self.await_page, address, "board.log")
        text = f"the board on {address}: jobs, tables and verdicts, live"
        self.process("board", text, command, "board.log", ready)
        return address

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
                f"root={self.settings.root}: all must end, and some may run on ({errors}); see `lakehouse stream status` and "
                "`lakehouse broker status`"
            ) from failed[0][1]


def end_tree(process: subprocess.Popen) -> None:
    """Ends a process and all that it started; kills what is left after 20 seconds."""
    import psutil

    if process.poll() is None:
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGINT)
        _, left = psutil.wait_procs(tree, timeout=20)
        for survivor in left:
            survivor.kill()
        psutil.wait_procs(left, timeout=5)
    process.wait()


def answers(address: str) -> bool:
    """Returns True if a page is there."""
    from lakehouse.runtime.http_client import Client, Unanswered

    try:
        with Client().ask("GET", address, within=5) as answer:
            return answer.status < 400
    except Unanswered:
        return False


def _free_port(wanted: int) -> int:
    """Returns the port, or any other one if it is taken."""
    for port in (wanted, 0):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as free:
            return free.getsockname()[1]
    return wanted
