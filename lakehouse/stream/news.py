"""Commits of this process: a step that waits for its input is woken by the step that feeds it.

Commits of other processes are not announced; they are seen at the next look.
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterable

_commits: Counter[str] = Counter()  # of each table, by this process
_changed = threading.Condition()


def announce(table: str) -> None:
    """Wakes those who wait for a commit of the table.

    Its line of the commit log is written, so that they know how far it is.
    """
    with _changed:
        _commits[table] += 1
        _changed.notify_all()


def commits(tables: Iterable[str]) -> int:
    """How many commits of the tables were announced; what `wait` is given, before one looks."""
    return sum(_commits[table] for table in tables)


def wait(tables: Collection[str], since: int, seconds: float) -> None:
    """Returns when a commit of one of the tables has been announced since then, or after so many seconds."""
    with _changed:
        _changed.wait_for(lambda: commits(tables) != since, seconds)
