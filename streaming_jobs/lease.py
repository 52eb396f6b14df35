"""One process runs a pipeline: a lock that goes with its holder, and a number that says whose turn it is.

A process that runs several has the lease of each, so that none of them is run by another beside it.

<root>/_jobs/<pipeline>/lease       locked by the process that runs the pipeline
<root>/_jobs/<pipeline>/epoch.json  the lease in force: its epoch, one more for each holder, and the holder

The lock alone keeps two processes apart, on one machine with a file system that locks. The epoch is for where it does
not: a process that wakes up after another took over finds an epoch that is not its own, before it writes, and ends.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import portalocker
import psutil

from lakehouse.errors import JobError
from lakehouse.files import replace_file
from lakehouse.settings import Settings
from streaming_jobs import progress

_END_OF_JVM = 20.0  # seconds


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose turn it is; the process is its pid and its start time (seconds since 1970), `job` the name it runs under."""

    epoch: int
    pid: int
    process_started: float
    since: str
    job: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one process to run pipelines (its job), as long as the epoch of each is the one in force."""

    job: str
    epochs: Mapping[Path, int]

    @property
    def epoch(self) -> int:
        return max(self.epochs.values())

    def check(self) -> None:
        """Raises JobError, with the winner's name, if another process has taken over: a small file read for each pipeline."""
        if refusal := self.refusal():
            raise refusal

    def refusal(self) -> JobError | None:
        for path, epoch in self.epochs.items():
            now = holder(path)
            if now and now.epoch == epoch:
                continue
            who = f"pid={now.pid} since {now.since} (epoch {now.epoch})" if now else "nobody (epoch.json is gone)"
            return JobError(
                f"pipeline={path.parent.name!r}, epoch={epoch}: {who} runs it now; one process fills a table, so "
                f"pid={os.getpid()} ends without writing"
            )
        return None


def holder(path: Path) -> Holder | None:
    """The lease in force by its file `epoch.json`; None before the first."""
    try:
        return Holder(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None


def path_of(settings: Settings, pipeline: str) -> Path:
    return progress.job_folder(settings, pipeline) / "epoch.json"


@contextmanager
def held(settings: Settings, job: str) -> Iterator[Lease]:
    """The right to run the pipelines of a job: held by one process, gone with it. Raises JobError naming who holds it."""
    with ExitStack() as locks:
        epochs = {}
        for pipeline in settings.members(job):
            path = path_of(settings, pipeline)
            locks.enter_context(_locked(path, pipeline))
            before = holder(path)
            for name in dict.fromkeys((pipeline, job, (before and before.job) or job)):
                _await_end_of_jvm(settings, name)
            now = Holder((before.epoch if before else 0) + 1, os.getpid(), psutil.Process().create_time(), progress.now(), job)
            replace_file(path, asdict(now))
            epochs[path] = now.epoch
        yield Lease(job, epochs)


def _locked(path: Path, pipeline: str) -> portalocker.Lock:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = portalocker.Lock(path.with_name("lease"), "a", timeout=0, fail_when_locked=True)
    try:
        lock.acquire()
    except portalocker.exceptions.LockException as err:
        winner = holder(path)
        who = f"pid={winner.pid} since {winner.since}" if winner else "another process"
        raise JobError(f"pipeline={pipeline!r}: {who} runs it; one process fills a table, so this one ends") from err
    return lock


def others(settings: Settings, job: str) -> set[str]:
    """Jobs of other names whose process, still there, runs a pipeline of this one."""
    found = (holder(path_of(settings, pipeline)) for pipeline in settings.members(job))
    return {h.job for h in found if h and h.job not in ("", job) and progress.is_alive(h.pid, h.process_started)}


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
