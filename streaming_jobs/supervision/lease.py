"""One process runs a pipeline: a lock that goes with its holder, and a number that says whose turn it is.

A process that runs several has the lease of each, so that none of them is run by another beside it.

<root>/_jobs/<pipeline>/lease       locked by the process that runs the pipeline, and touched by it every second
<root>/_jobs/<pipeline>/epoch.json  the lease in force: its epoch, one more for each holder, and the holder

The lock alone keeps two processes apart, on one machine with a file system that locks. The epoch is
for where it does not: a process that wakes up after another took over finds an epoch that is not
its own, before it writes, and ends. A holder that runs elsewhere (`streaming_jobs.supervision.places`) is
waited for until its lease has expired: its process, or its JVM, may live on though its lock is
gone.
"""

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from lakehouse import processes
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.disk.files import exists, moved_aside, replace_file, touch
from lakehouse.storage.disk.root import make as make_root
from streaming_jobs import progress
from streaming_jobs.supervision import holders
from streaming_jobs.supervision.holders import Holder, holder
from streaming_jobs.supervision.places import here

_log = logging.getLogger(__name__)

_END_OF_JVM = 20.0  # seconds
_RENEWAL = 1.0  # seconds between two touches of the lease


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one process to run pipelines (its job), as long as the epoch of each is the one in force."""

    job: str
    held: Mapping[Path, Holder]

    @property
    def epoch(self) -> int:
        return max(mine.epoch for mine in self.held.values())

    def check(self) -> None:
        """Raises JobError, with the winner's name, if another process has taken over: a small file read for each pipeline."""
        if refusal := self.refusal():
            raise refusal

    def refusal(self) -> JobError | None:
        for path, mine in self.held.items():
            if (now := holder(path)) == mine or self._restored(path, mine):
                continue
            who = f"{now} (epoch {now.epoch})" if now else "nobody (epoch.json is gone)"
            return JobError(
                f"pipeline={path.parent.name!r}, epoch={mine.epoch}: {who} runs it now; one process fills a table, so "
                f"pid={os.getpid()} ends without writing"
            )
        return None

    def _restored(self, path: Path, mine: Holder) -> bool:
        """Whether the file was unreadable, which was said, and is written again: whoever takes over leaves a readable one."""
        if exists(path) or not moved_aside(path):
            return False
        replace_file(path, asdict(mine))
        return True

    def renew(self) -> None:
        """Says to other hosts, by the clock of the file system, that this process lives."""
        for path in self.held:
            lease = path.with_name("lease")
            if not touch(lease):
                message = "the lock of the process that runs the pipeline, and it was removed; the epoch alone protects it now"
                _log.warning(f"file={lease}: {message}")


@contextmanager
def held(settings: Settings, job: str) -> Iterator[Lease]:
    """The right to run the pipelines of a job: held by one process, gone with it.

    Raises JobError naming who holds it.
    """
    make_root(settings)
    with ExitStack() as taken_locks:
        taken: dict[Path, Holder] = {}
        for pipeline in settings.members(job):
            path = layout.job_file(settings, pipeline, "epoch.json")
            taken_locks.enter_context(_locked(path, pipeline))
            before, spoken = holder(path), progress.read(settings, job)
            _check_expired(settings, pipeline, job, before)
            if before and not before.ended and spoken is None:
                message = (
                    "gone, and with it which JVM the process before had; if that still runs, Delta alone "
                    "keeps the two apart"
                )
                _log.warning(f"file={path.with_name('status.json')}: {message}")
            for name in dict.fromkeys((pipeline, job, (before and before.job) or job)):
                _await_end_of_jvm(settings, name)
            # never one that a process that sleeps may have
            # epoch.json may be gone, or an older copy
            last = max(before.epoch if before else 0, spoken.epoch if spoken else 0)
            pid = os.getpid()
            mine = Holder(last + 1, pid, processes.started(pid), progress.now(), job, here())
            replace_file(path, asdict(mine))
            taken[path] = mine
        lease = Lease(job, taken)
        ended = threading.Event()
        renewal = threading.Thread(target=_keep, args=(lease, ended), name="lease", daemon=True)
        renewal.start()
        try:
            yield lease
        finally:
            ended.set()
            renewal.join()
        # not after an error: its JVM may still write, and who is elsewhere cannot see it
        _release(lease)


def _keep(lease: Lease, ended: threading.Event) -> None:
    """Renews the lease until the process ends or another has it.

    What fails is said once, and tried again.
    """
    failed = ""
    while True:
        try:
            if lease.refusal():
                return
            lease.renew()
            failed = ""
        except OSError as err:
            if not failed:
                message = f"lease of {lease.job}: it cannot be renewed, and expires for other hosts ({err})"
                _log.warning(message)
            failed = str(err)
        if ended.wait(_RENEWAL):
            return


def _release(lease: Lease) -> None:
    for path, mine in lease.held.items():
        if holder(path) == mine:
            replace_file(path, asdict(replace(mine, ended=True)))


def _check_expired(settings: Settings, pipeline: str, job: str, before: Holder | None) -> None:
    spoken = progress.last_word(settings, job)
    if seconds := holders.left(settings, pipeline, spoken.place if spoken else here()):
        who = before or (f"pid={spoken.pid} ({spoken.place})" if spoken else "a process")
        raise JobError(
            f"pipeline={pipeline!r}: {who} may still write; a process that runs elsewhere is judged by its lease alone, which "
            f"expires in {seconds:.0f} s unless it is renewed; stop the job there, or start it here after that"
        )


def _locked(path: Path, pipeline: str) -> AbstractContextManager[object]:
    try:
        return locks.alone(path.with_name("lease"), wait=0)
    except locks.Locked as err:
        winner = holder(path)
        who = winner or "another process"
        raise JobError(
            f"pipeline={pipeline!r}: {who} runs it; one process fills a table, so this one ends"
        ) from err


def others(settings: Settings, job: str) -> set[str]:
    """Jobs of other names whose process, still there, runs a pipeline of this one."""
    by_pipeline = (
        (pipeline, holder(layout.job_file(settings, pipeline, "epoch.json")))
        for pipeline in settings.members(job)
    )
    return {
        h.job
        for pipeline, h in by_pipeline
        if h and h.job not in ("", job) and _lives(settings, pipeline, h)
    }


def _lives(settings: Settings, pipeline: str, holder: Holder) -> bool:
    if holder.place.is_here:
        return progress.is_alive(holder.pid, holder.process_started)
    return holders.left(settings, pipeline, holder.place) > 0


def _await_end_of_jvm(settings: Settings, pipeline: str) -> None:
    """A killed driver's JVM notices within moments.

    Until then it may still be in the middle of a commit.
    """
    before = progress.read(settings, pipeline)
    if before is None or not before.jvm_alive:
        return
    try:
        psutil.Process(before.jvm).wait(timeout=_END_OF_JVM)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired as err:
        raise JobError(
            f"pipeline={pipeline!r}, jvm={before.jvm}: the JVM of the process before still runs and may write; end it first"
        ) from err
