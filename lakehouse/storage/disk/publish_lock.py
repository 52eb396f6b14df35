"""One process at a time rewrites a table, and one reconciles what is due of it: locks that die with their process."""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.disk.root import make as make_root


def publishing(settings: Settings, table: Table) -> AbstractContextManager[object]:
    """Takes the table's lock; raises JobError naming the process that has it."""
    make_root(settings)
    return held(layout.publish_lock(settings, table), table, "rewriting")


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

    return locks.alone(path, 0, str(os.getpid()), refusal)


def holder(settings: Settings, table: Table) -> str:
    """The pid of the process that has the table's lock now; empty if none."""
    return locks.holder(layout.publish_lock(settings, table))
