"""One process runs a pipeline: a lock that goes with its holder, and a number that says whose turn it is.

<root>/_jobs/<pipeline>/lease       locked by the process that runs the pipeline
<root>/_jobs/<pipeline>/epoch.json  the lease in force: its epoch, one more for each holder, and the holder

The lock alone keeps two processes apart, on one machine with a file system that locks. The epoch is for where it does
not: a process that wakes up after another took over finds an epoch that is not its own, before it writes, and ends.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import portalocker
import psutil

from lakehouse.errors import JobError
from lakehouse.settings import Settings
from streaming_jobs import progress

_END_OF_JVM = 20.0  # seconds


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose turn it is; the process is its pid and its start time (seconds since 1970)."""

    epoch: int
    pid: int
    process_started: float
    since: str


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one process to run `pipeline`, as long as `epoch` is the one in force."""

    path: Path
    pipeline: str
    epoch: int

    def check(self) -> None:
        """Raises JobError, with the winner's name, if another process has taken over: one small file read."""
        if refusal := self.refusal():
            raise refusal

    def refusal(self) -> JobError | None:
        now = holder(self.path)
        if now and now.epoch == self.epoch:
            return None
        who = f"pid={now.pid} since {now.since} (epoch {now.epoch})" if now else "nobody (epoch.json is gone)"
        return JobError(
            f"pipeline={self.pipeline!r}, epoch={self.epoch}: {who} runs it now; one process fills a table, so "
            f"pid={os.getpid()} ends without writing"
        )


def holder(path: Path) -> Holder | None:
    """The lease in force by its file `epoch.json`; None before the first."""
    try:
        return Holder(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None


def path_of(settings: Settings, pipeline: str) -> Path:
    return progress.job_folder(settings, pipeline) / "epoch.json"


@contextmanager
def held(settings: Settings, pipeline: str) -> Iterator[Lease]:
    """The right to run a pipeline: held by one process, gone with it. Raises JobError naming who holds it."""
    path = path_of(settings, pipeline)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = portalocker.Lock(path.with_name("lease"), "a", timeout=0, fail_when_locked=True)
    try:
        lock.acquire()
    except portalocker.exceptions.LockException as err:
        winner = holder(path)
        who = f"pid={winner.pid} since {winner.since}" if winner else "another process"
        raise JobError(f"pipeline={pipeline!r}: {who} runs it; one process fills a table, so this one ends") from err
    with lock:
        _await_end_of_jvm(settings, pipeline)
        before = holder(path)
        now = Holder(before.epoch + 1 if before else 1, os.getpid(), psutil.Process().create_time(), progress.now())
        progress.replace_file(path, asdict(now))
        yield Lease(path, pipeline, now.epoch)


def _await_end_of_jvm(settings: Settings, pipeline: str) -> None:
    """A killed driver's JVM notices within moments; until then it may still be in the middle of a commit."""
    before = progress.read(settings, pipeline)
    if before is None or not before.jvm or not progress.is_alive(before.jvm, before.jvm_started):
        return
    try:
        psutil.Process(before.jvm).wait(timeout=_END_OF_JVM)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired as err:
        raise JobError(
            f"pipeline={pipeline!r}, jvm={before.jvm}: the JVM of the process before still runs and may write; end it first"
        ) from err
