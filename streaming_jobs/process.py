"""The process of a job, a pipeline's or a follower's: its lease, its status file, the wish to stop, its exit code.

Exit codes: 0 stopped or done; 1 failed; 2 refused (settings, declaration, a second process).
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from lakehouse import logs
from lakehouse.errors import JobError, LakehouseError
from lakehouse.settings import Settings, from_environment
from lakehouse.stopping import Stop
from streaming_jobs import progress
from streaming_jobs.supervision import desired, jobs, lease
from streaming_jobs.supervision.holders import here
from streaming_jobs.supervision.lease import Lease


class Process:
    """One life of a job's process. `first` are further fields of its first status."""

    def __init__(self, settings: Settings, job: str, lease: Lease, **first: Any) -> None:
        self.settings, self.job, self.lease = settings, job, lease
        self.stopping = Stop()
        self.status = progress.of_this_process(
            job, epoch=lease.epoch, code=progress.origins(settings), **first
        )
        self._asked = desired.read(settings, job)

    def say(self, **changes: Any) -> None:
        """Renews the status file. Raises JobError, and leaves the file alone, if another process has taken over."""
        self.lease.check()
        self.status = replace(self.status, place=here(), **changes)
        progress.write(self.settings, self.status)

    def obey(self) -> None:
        """Stops the process once the job is to be stopped: the wish may come from another host, which sends no signal."""
        wanted = desired.read(self.settings, self.job)
        if wanted and wanted.state == "stopped" and wanted != self._asked:
            self.stopping.set()


class Work(Protocol):
    """The work of a job's process. `run` returns when it is done, or after a signal has called `ask_to_stop`.

    `fail` writes into the status why the process ends.
    """

    process: Process

    def run(self) -> None: ...
    def ask_to_stop(self) -> None: ...
    def fail(self, error: str, expected: bool) -> None: ...


def arguments_of(module: str, description: str, name: str) -> argparse.ArgumentParser:
    """Returns the arguments of a job's module: the name that it runs `of`, and `--foreground`."""
    parser = argparse.ArgumentParser(prog=module, description=description)
    parser.add_argument(name)
    help = "a command runs it, and no supervisor keeps it running"
    parser.add_argument("--foreground", action="store_true", help=help)
    return parser


def run(
    log: logging.Logger,
    foreground: bool,
    prepared: Callable[[Settings], tuple[Settings, str, Callable[[Lease], Work]]],
) -> int:
    """Runs a job in this process, and returns its exit code.

    `prepared` makes the checks that need no lease, and returns the job's settings, its name, and a function that makes its
    work of the lease.
    """
    work: Work | None = None
    logs.configure(Settings(), timed=True)  # until those of the environment are read
    try:
        settings = from_environment()
        logs.configure(settings, timed=True)
        settings, job, begin = prepared(settings)
        with lease.acquire(settings, job) as own_lease:
            if foreground:
                desired.wish(settings, job, "unsupervised", jobs.command("run", job))
            work = begin(own_lease)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: work.ask_to_stop())
            work.run()
        return 0
    except SystemExit as err:
        if work and work.process.stopping.is_set():  # as it starts
            return 0
        return _failed(log, work, JobError(f"a table's code ended it: {err.code}"))
    except Exception as err:
        return _failed(log, work, err)


def _failed(log: logging.Logger, work: Work | None, err: Exception) -> int:
    """Reports why the process ends, also in its status if that is still its own, and returns the exit code."""
    lost = work.process.lease.refusal() if work else None
    err = lost or err  # a lost lease is the cause of any failure
    expected = isinstance(err, LakehouseError)
    log.error(str(err), exc_info=None if expected else err)
    if work is None or lost:
        return 2 if expected else 1
    with suppress(
        OSError, JobError
    ):  # the disk is full, or the status is another's: that is the reason
        work.fail(str(err), expected)
    return 1


def leave(main: Callable[[], int]) -> NoReturn:
    """Runs a job's module as the program, and ends the process, though a thread of librdkafka or py4j may still wait."""
    # started by hand: as for the script `lakehouse`, the current folder is no place of modules
    if not sys.flags.safe_path:
        del sys.path[0]
    code = main()
    sys.stdout.flush()
    os._exit(code)
