"""A job's next process, which comes up while the present one runs, so that its JVM is there when its turn comes.

Two pipes join it with the command that starts it. By one it says that it is ready; by the other it is let go. A command
that ends before that, killed or not, closes them, and the process ends.
"""

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from lakehouse import processes
from lakehouse.durations import duration
from lakehouse.errors import JobError
from lakehouse.settings import Settings, to_environment
from streaming_jobs.supervision import healing, jobs
from streaming_jobs.supervision.job_logs import fresh_log, log_tail

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READY, _GO = b"r", b"g"
_LOOK = 1.0  # seconds between two looks at what it does


def spawn(settings: Settings, pipeline: str, *more: str, pipes: Sequence[int] = ()) -> int:
    """Starts a process of the job, detached, and returns its pid without waiting for it."""
    # -P: as for the script `lakehouse`, the current folder is no place of modules
    command = [sys.executable, "-P", "-m", jobs.module_of(pipeline), pipeline, *more]
    env = os.environ | to_environment(settings)
    return processes.detached(command, fresh_log(settings, pipeline), env=env, pass_fds=pipes)


@dataclass(frozen=True, slots=True)
class Standby:
    """The next process of a job, as seen by the command that started it."""

    settings: Settings
    pipeline: str
    pid: int
    ready: int  # the end of a pipe from which is read
    turn: int  # the end of one to which is written

    def await_ready(self) -> None:
        """Returns when it is ready. Raises JobError with the end of its log if it hangs or ends."""
        limit, began = duration(self.settings.start_within), time.monotonic()
        while not select.select([self.ready], [], [], _LOOK)[0]:
            silence = timedelta(seconds=time.monotonic() - began)
            computed = timedelta(seconds=processes.cpu_seconds(*processes.family(self.pid)))
            if healing.is_overdue(silence, limit, computed, processes.cpu_share()):
                self._refuse(f"is not ready after {silence.total_seconds():.0f} s")
        if os.read(self.ready, 1) != _READY:
            self._refuse("ended before it was ready")

    def _refuse(self, what: str) -> NoReturn:
        raise JobError(
            f"pipeline={self.pipeline!r}, pid={self.pid}: its next process {what}, so the job is as it was; the log "
            f"ends:\n{log_tail(self.settings, self.pipeline)}"
        )

    def go(self) -> None:
        """Lets it run the job from now on. If it has ended meanwhile, `await_running` finds that."""
        with suppress(BrokenPipeError):
            os.write(self.turn, _GO)


@contextmanager
def standby(settings: Settings, pipeline: str) -> Iterator[Standby]:
    """Starts the next process of the job, and ends it if it is not let go within this context."""
    (ready, says), (waits, turn) = os.pipe(), os.pipe()
    theirs = [says, waits]
    try:
        pid = spawn(settings, pipeline, "--standby", *map(str, theirs), pipes=theirs)
        while theirs:  # else their end would never be seen here
            os.close(theirs.pop())
        yield Standby(settings, pipeline, pid, ready, turn)
    finally:
        for end in (ready, turn, *theirs):
            os.close(end)


def come_up(settings: Settings, pipeline: str, says: int, waits: int) -> None:
    """Comes up within that process, without a lease, and returns when it is let go. Raises JobError if it is not.

    It imports the tables' code, starts the JVM, and plans as the job will plan, so that the JVM has the classes for that.
    """
    from lakehouse.declare import catalog
    from lakehouse.storage.session import Session
    from lakehouse.stream.strategy import strategy
    from lakehouse.transform.plan import plan_of

    loaded = catalog.load(settings)
    beside = Session(settings, loaded, session(settings, pipeline))
    for table in loaded.of_pipeline(pipeline):
        if table.kind.is_streamed:
            strategy(beside, table)
            step = plan_of(beside, table)
            _ = step.schema, step.rules
    os.write(says, _READY)
    os.close(says)
    if os.read(waits, 1) != _GO:
        raise JobError("the command that started this process ended without it, so it ends")
    os.close(waits)


def session(settings: Settings, pipeline: str) -> "SparkSession":
    """Returns the session of a job: the one there is, or a new one."""
    from lakehouse.runtime import spark_session

    return spark_session.create(settings, f"streaming job {pipeline}", ui=True)
