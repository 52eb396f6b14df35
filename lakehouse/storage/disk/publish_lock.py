"""One process at a time rewrites a table, and one reconciles what is due of it: locks that die with their process.

Where a lock does not reach, on another host say, an epoch in the table decides. A process that rewrites has a marker
`_locks/<table>.writing-<its own>`, which goes as it ends. Who finds the marker of another raises the epoch by a commit:
that process was killed, or sleeps, and is refused whatever it still commits.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage.delta import committer, delta_log
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.disk.root import make as make_root

_FENCE, _WRITING = "rewriting", ".writing-"
_MOMENT = 2.0  # seconds: a job has the lock for less, while it cuts the table's log


@contextmanager
def publishing(settings: Settings, table: Table) -> Iterator[None]:
    """Takes the table's lock; raises JobError naming the process that has it.

    A commit of another process that had the lock, and lost it, is refused from then on.
    """
    make_root(settings)
    lock = layout.publish_lock(settings, table)
    with held(lock, table, "rewriting"):
        paths = [layout.table_path(settings, table, side) for side in ("", "quarantine")]
        others = [*lock.parent.glob(f"{table.name}{_WRITING}*")]
        marker = lock.with_name(f"{table.name}{_WRITING}{uuid.uuid4().hex}")
        marker.touch()
        try:
            for path in paths:
                fence = committer.take_over if others and delta_log.exists(path) else committer.join
                fence(path, _FENCE)
            for other in others:
                other.unlink(missing_ok=True)
            yield
        finally:
            for path in paths:
                committer.leave(path, _FENCE)
            marker.unlink(missing_ok=True)


def reconciling(settings: Settings, table: Table) -> AbstractContextManager[object]:
    """Takes the lock of whoever reconciles what is due of the table; raises JobError naming the process that has it."""
    make_root(settings)
    return held(layout.reconcile_lock(settings, table), table, "reconciling")


def held(path: Path, table: Table, doing: str) -> AbstractContextManager[object]:
    """Takes a lock of the table; raises JobError naming the process that has it, and what that is `doing`."""

    def refusal(holder: str) -> JobError:
        return JobError(
            f"table={table.name} (pid={holder}): that process is {doing} the table, and one at a time may; run this again "
            "when it has ended"
        )

    return locks.alone(path, _MOMENT, str(os.getpid()), refusal)


def holder(settings: Settings, table: Table) -> str:
    """The pid of the process that has the table's lock now; empty if none."""
    return locks.holder(layout.publish_lock(settings, table))
