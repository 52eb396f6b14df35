"""A live `dagster dev` on a lakehouse, and its API."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from lakehouse.settings import Settings, to_environment
from support import ROOT

QUERIES = re.findall(
    r"```graphql\n(\w+ (\w+).*?)```",
    (ROOT / "docs" / "reference" / "http.md").read_text(),
    re.DOTALL,
)
DOCS = {name: query for query, name in QUERIES}


@dataclass(frozen=True)
class UI:
    address: str
    settings: Settings

    def ask(self, query: str, **variables: object) -> dict:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"{self.address}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = json.load(answer)
        assert "errors" not in found, found["errors"]
        return found["data"]


@contextmanager
def dagster_dev(settings: Settings) -> Iterator[UI]:
    """The UI and the daemon as a user starts them, on a free port, in a session of their own."""
    log = settings.root.parent / "dagster.log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lakehouse", "ui", "--port", str(port)],
            cwd=ROOT, env=os.environ | to_environment(settings),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, preexec_fn=ignored_signals,
        )  # fmt: skip
    try:
        live = UI(f"http://127.0.0.1:{port}", settings)
        until(lambda: answers(live, process), "dagster dev answers", log)
        yield live
    finally:
        end(process)


def ignored_signals() -> None:
    """As a shell has them for what it starts in the background: `lakehouse ui` ends by them all the same."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def default_signals() -> None:
    """A shell that runs the tests in the background has them ignored, and `dagster dev` would never end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def answers(live: UI, process: subprocess.Popen) -> bool:
    assert process.poll() is None, f"dagster dev ended with code {process.returncode}"
    try:
        return bool(live.ask("{ version }"))
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def until(
    done: Callable[[], object], what: str, log: Path | None = None, seconds: float = 240
) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        tail = log.read_text(errors="replace")[-2000:] if log else ""
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{tail}"
        time.sleep(0.5)


def end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        parent = psutil.Process(process.pid)
        family = [parent, *parent.children(recursive=True)]
        process.send_signal(signal.SIGINT)
        _, left = psutil.wait_procs(family, timeout=30)
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait(10)


def ended(ui: UI, launched: dict) -> str:
    """How the run ended."""
    assert launched["__typename"] == "LaunchRunSuccess", launched

    def status() -> str:
        return ui.ask(DOCS["Run"], run=launched["run"]["runId"])["runOrError"]["status"]

    until(lambda: status() in ("SUCCESS", "FAILURE"), "the run ends")
    return status()
