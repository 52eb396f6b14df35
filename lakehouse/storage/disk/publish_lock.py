"""One process at a time rewrites a table, and one reconciles what is due of it: locks that die with their process."""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.disk.files import read_value
from lakehouse.storage.disk.root import make as make_root
from lakehouse.storage.disk.typed_values import typed


@dataclass(frozen=True, slots=True)
class Publishing:
    """What a batch run is about to put into a table.

    :param before: the table's version before that.
    :param commits: the lines that its commit log gets afterwards.
    """

    run: str
    before: int
    commits: tuple[str, ...]


def published_by(settings: Settings, table: Table) -> Publishing | None:
    """What a batch run has begun to put into the table and not noted as done; None if none has."""
    doubt = (
        f"a killed batch run of {table.name} holds no version back, and may lack its line in the commit log: "
        "`lakehouse reconcile run` finds what differs"
    )
    path = layout.note(settings, table, "publishing.json")
    return read_value(path, partial(typed, Publishing), doubt)


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
    try:
        return locks.alone(path, wait=0, note=str(os.getpid()))
    except locks.Locked as err:
        raise JobError(
            f"table={table.name} (pid={err.holder}): that process is {doing} the table, and one at a time may; run this again "
            "when it has ended"
        ) from err


def holder(settings: Settings, table: Table) -> str:
    """The pid of the process that has the table's lock now; empty if none."""
    return locks.holder(layout.publish_lock(settings, table))
