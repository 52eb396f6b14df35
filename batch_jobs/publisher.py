"""One publisher at a time per table: a lock that dies with its process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import portalocker

from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.settings import Settings


@contextmanager
def publishing(settings: Settings, table: Table) -> Iterator[None]:
    """Holds the table's lock; raises JobError naming the process that has it."""
    path = settings.root / "_locks" / f"{table.name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.LockException as err:
            file.seek(0)
            raise JobError(
                f"table={table.name} (pid={file.read() or 'unknown'}): that process is rewriting the table, and "
                "one at a time may;"
                " run this again when it has ended"
            ) from err
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield  # closing the file releases the lock


def holder(settings: Settings, table: Table) -> str:
    """The pid of the process that has the table's lock now; empty if none."""
    path = settings.root / "_locks" / f"{table.name}.lock"
    if not path.exists():
        return ""
    with path.open() as file:
        try:
            portalocker.lock(file, portalocker.LOCK_SH | portalocker.LOCK_NB)
        except portalocker.LockException:
            return file.read() or "unknown"
    return ""
