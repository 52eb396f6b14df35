"""One publisher at a time per table: a lock that dies with its process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage import layout, locks


@contextmanager
def publishing(settings: Settings, table: Table) -> Iterator[None]:
    """Holds the table's lock; raises JobError naming the process that has it."""
    try:
        lock = locks.alone(layout.publish_lock(settings, table), wait=0, note=str(os.getpid()))
    except locks.Locked as err:
        raise JobError(
            f"table={table.name} (pid={err.holder}): that process is rewriting the table, and one at a time may; run this "
            "again when it has ended"
        ) from err
    with lock:
        yield


def holder(settings: Settings, table: Table) -> str:
    """The pid of the process that has the table's lock now; empty if none."""
    return locks.holder(layout.publish_lock(settings, table))
