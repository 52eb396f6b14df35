"""One process runs a pipeline: a lock that ends with its holder, and an epoch that names the holder.

A process that runs several pipelines has the lease of each.

<root>/_jobs/<pipeline>/lease       locked by the process that runs the pipeline, and touched by it every second
<root>/_jobs/<pipeline>/epoch.json  the lease in force: its epoch, one more for each holder, and the holder

On one machine with a file system that locks, the lock alone keeps two processes apart. The epoch is for all others: a
process that wakes up after another took over finds a foreign epoch before it writes, and ends. A holder elsewhere
(`streaming_jobs.supervision.holders`) is waited for until its lease has expired: its process, or its JVM, may outlive
its lock.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lakehouse import processes
from lakehouse.errors import JobError
from lakehouse.object_paths import ObjectPath
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.disk.files import exists, moved_aside, replace_file, touch
from lakehouse.storage.disk.root import make as make_root
from streaming_jobs import progress
from streaming_jobs.supervision import holders
from streaming_jobs.supervision.holders import Holder, here, holder

_log = logging.getLogger(__name__)

_END_OF_JVM = 20.0  # seconds
# seconds for which a lease in an object store counts as looked at: the epoch of the table refuses what is written meanwhile
_MOMENT = 2.0
_RENEWAL = 1.0  # seconds between two touches of the lease
_RENEWAL_OF_OBJECTS = (
    5.0  # seconds between two looks at the epoch in an object store, where each is a request
)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one process to run pipelines (its job), as long as the epoch of each is the one in force."""

    job: str
    held: Mapping[Path, Holder]
    looked: list[float] = field(
        default_factory=list, compare=False
    )  # when it was in force, of an object store

    @property
    def epoch(self) -> int:
        return max(mine.epoch for mine in self.held.values())

    def check(self) -> None:
        """Raises JobError, with the winner's name, if another process has taken over. It reads a small file for each pipeline."""
        if refusal := self.refusal():
            raise refusal

    def refusal(self) -> JobError | None:
        if self.looked and time.monotonic() - self.looked[-1] < _MOMENT:
            return None
        for path, mine in self.held.items():
            if (now := holder(path)) == mine or self._restored(path, mine):
                continue
            who = f"{now} (epoch {now.epoch})" if now else "nobody (epoch.json is gone)"
            return JobError(
                f"pipeline={path.parent.name!r}, epoch={mine.epoch}: {who} runs it now; one process fills a table, so "
                f"pid={os.getpid()} ends without writing"
            )
        if any(isinstance(path, ObjectPath) for path in self.held):
            self.looked[:] = [time.monotonic()]
        return None

    def _restored(self, path: Path, mine: Holder) -> bool:
        """Writes a file again that was unreadable, and returns True: a process that takes over leaves a readable one."""
        if exists(path) or not moved_aside(path):
            return False
        replace_file(path, asdict(mine))
        return True

    def renew(self) -> None:
        """Shows other hosts, by the clock of the file system, that this process lives."""
        for path in self.held:
            lease = path.with_name("lease")
            # in an object store the lock itself is written again and again
            if not isinstance(lease, ObjectPath) and not touch(lease):
                _log.warning(
                    f"file={lease}: the lock of the pipeline's process was removed; the epoch alone protects it now"
                )


@contextmanager
def acquire(settings: Settings, job: str) -> Iterator[Lease]:
    """Holds the right to run the pipelines of a job, which one process has. Raises JobError with the name of that."""
    make_root(settings)
    with ExitStack() as locked:
        by_path: dict[Path, Holder] = {}
        for pipeline in settings.members(job):
            path = layout.job_file(settings, pipeline, "epoch.json")
            locked.enter_context(_locked(path, pipeline))
            before, spoken = holder(path), progress.read(settings, job)
            _check_expired(settings, pipeline, job, before)
            if before and not before.ended and spoken is None:
                _log.warning(
                    f"file={path.with_name('status.json')}: gone, and with it which JVM the process before had; if that still "
                    "runs, Delta alone keeps the two apart"
                )
            for name in dict.fromkeys((pipeline, job, (before and before.job) or job)):
                _await_end_of_jvm(settings, name)
            # never an epoch that a suspended process may have; epoch.json may be gone, or an older copy
            last = max(before.epoch if before else 0, spoken.epoch if spoken else 0)
            pid = os.getpid()
            mine = Holder(last + 1, pid, processes.started(pid), progress.now(), job, here())
            replace_file(path, asdict(mine))
            by_path[path] = mine
        lease = Lease(job, by_path)
        ended = threading.Event()
        renewal = threading.Thread(target=_keep, args=(lease, ended), name="lease", daemon=True)
        renewal.start()
        try:
            yield lease
        finally:
            ended.set()
            renewal.join()
        # not after an error: its JVM may still write, and no process elsewhere can see it
        for path, mine in by_path.items():
            if holder(path) == mine:
                replace_file(path, asdict(replace(mine, ended=True)))


def _keep(lease: Lease, ended: threading.Event) -> None:
    """Renews the lease until the process ends or another has it. A failure is logged once, and tried again."""
    failed, on_a_disk = False, not any(isinstance(path, ObjectPath) for path in lease.held)
    while True:
        try:
            if lease.refusal():
                return
            lease.renew()
            failed = False
        except OSError as err:
            if not failed:
                _log.warning(
                    f"lease of {lease.job}: it cannot be renewed, and expires for other hosts ({err})"
                )
            failed = True
        if ended.wait(_RENEWAL if on_a_disk else _RENEWAL_OF_OBJECTS):
            return


def _check_expired(settings: Settings, pipeline: str, job: str, before: Holder | None) -> None:
    spoken = progress.last_word(settings, job)
    if seconds := holders.left(settings, pipeline, spoken.place if spoken else here()):
        who = before or (f"pid={spoken.pid} ({spoken.place})" if spoken else "a process")
        raise JobError(
            f"pipeline={pipeline!r}: {who} may still write, until its lease expires in {seconds:.0f} s; stop the job there, or "
            "start it here after that"
        )


def _locked(path: Path, pipeline: str) -> AbstractContextManager[object]:
    def refusal(_: str) -> JobError:
        who = holder(path) or "another process"
        return JobError(
            f"pipeline={pipeline!r}: {who} runs it; one process fills a table, so this one ends"
        )

    return locks.alone(path.with_name("lease"), wait=0, refusal=refusal)


def others(settings: Settings, job: str) -> set[str]:
    """Returns the jobs of other names whose process, still there, runs a pipeline of this one."""
    names = set()
    for pipeline in settings.members(job):
        now = holder(layout.job_file(settings, pipeline, "epoch.json"))
        if now is None or now.job in ("", job):
            continue
        if now.place.is_here:
            lives = progress.is_alive(now.pid, now.process_started)
        else:
            lives = holders.left(settings, pipeline, now.place) > 0
        if lives:
            names.add(now.job)
    return names


def _await_end_of_jvm(settings: Settings, pipeline: str) -> None:
    """Waits until the JVM of a killed driver has noticed; until then it may still be in the middle of a commit."""
    before = progress.read(settings, pipeline)
    if before and not before.await_end_of_jvm(_END_OF_JVM):
        raise JobError(
            f"pipeline={pipeline!r}, jvm={before.jvm}: the JVM of the process before still runs and may write; end it first"
        )
