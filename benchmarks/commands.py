"""Commands of `lakehouse`, each in a process of its own as when a person gives it, and what is waited for after one."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from itertools import takewhile
from typing import NamedTuple, TypeVar

from benchmarks.measure import BenchmarkError
from lakehouse.declare.table import Table
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.log.commit_log import CommitLog
from streaming_jobs.supervision import desired

T = TypeVar("T")
LIMIT = 1_800.0  # seconds for one command


class Done(NamedTuple):
    """What a command printed, and how long it took with the start of its process."""

    output: str
    seconds: float


def run(settings: Settings, *words: str) -> Done:
    """Runs a command to its end. Raises BenchmarkError with what it printed if its exit code is not 0."""
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "lakehouse", *words],
        env=os.environ | to_environment(settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )
    if ended.returncode:
        raise BenchmarkError(
            f"lakehouse {' '.join(words)}: exit code {ended.returncode}; the run is void:\n{ended.stdout}"
        )
    return Done(ended.stdout, time.monotonic() - began)


def awaited(look: Callable[[], T | None], what: str, limit: float) -> T:
    """What `look` finds, as soon as it finds something. Raises BenchmarkError after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not (found := look()):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{what}: not within {limit:.0f} s; the run is void")
        time.sleep(0.05)
    return found


def first_commit(settings: Settings, table: Table, after: datetime) -> datetime | None:
    """The instant of the first commit of the table's stream after that one."""
    newer = list(takewhile(lambda c: c.at > after, CommitLog(settings, table).by_stream()))
    return newer[-1].at if newer else None


def asked_to_end(settings: Settings, pipeline: str) -> float:
    """When the job was asked to end last, in seconds since the epoch."""
    asked = (e for e in reversed(desired.history(settings, pipeline)) if e.what == "stopping")
    return next(asked).moment.timestamp()
