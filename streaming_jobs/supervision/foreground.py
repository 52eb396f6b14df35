"""A job in the process of the command: `lakehouse stream run`, `lakehouse publish run`, for a container or a service.

The runner of the command keeps the job running, so no supervisor does: it is recorded as unsupervised.
"""

import logging
import signal
import sys
import time

from lakehouse import logs
from lakehouse.settings import Settings
from streaming_jobs import progress
from streaming_jobs.supervision import holders, jobs
from streaming_jobs.supervision.holders import here

_log = logging.getLogger(__name__)

_LOOK = 1.0  # seconds between two looks at the lease of a process elsewhere


def run(settings: Settings, job: str) -> int:
    """Runs the job until SIGTERM or Ctrl-C, and returns the exit code of its process; its log goes to standard error.

    It waits until a process elsewhere has ended, or its lease has expired: a container that was killed has another PID
    namespace when it is started again.
    """
    logs.configure(settings, timed=True)
    for number in (signal.SIGTERM, signal.SIGINT):  # until the job has handlers of its own
        signal.signal(number, lambda *_: sys.exit(0))  # nothing is there to be drained
    _await_lease(settings, job)
    if target := jobs.target_of(job):
        from streaming_jobs.exporters import follower

        return follower.main([target, "--foreground"])
    from streaming_jobs import driver

    return driver.main([job, "--foreground"])


def _await_lease(settings: Settings, job: str) -> None:
    status = progress.last_word(settings, job)
    place = status.place if status else here()
    seconds = holders.left(settings, job, place)
    if seconds:
        _log.warning(
            f"job={job}: its process elsewhere ({place}) may still write; its lease expires in {seconds:.0f} s unless it "
            f"renews it, and this process waits for that, or for `{jobs.command('stop', job)}`"
        )
    while holders.left(settings, job, place):
        time.sleep(_LOOK)
