"""Commits of this process: a step that waits for its input is woken by the step that feeds it.

Commits of other processes are not announced; they are found by polling.
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterable

_commits: Counter[str] = Counter()  # of each table, by this process
_changed = threading.Condition()


def announce(table: str) -> None:
    """Wakes the threads that wait for a commit of the table.

    It is called once the commit log has its line, so that they see how far the table is.
    """
    with _changed:
        _commits[table] += 1
        _changed.notify_all()


def commits(tables: Iterable[str]) -> int:
    """Returns how many commits of the tables were announced. Ask before you look, and give the number to `wait`."""
    return sum(_commits[table] for table in tables)


def wait(tables: Collection[str], since: int, seconds: float) -> None:
    """Returns when a commit of one of the tables has been announced since that number, or after `seconds`."""
    with _changed:
        _changed.wait_for(lambda: commits(tables) != since, seconds)
