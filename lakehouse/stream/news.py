"""Commits of this process: a step that waits for its input is woken by the step that feeds it.

Commits of other processes are not announced; they are found by polling.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

_commits: Counter[str] = Counter()  # of each table, by this process
# by table, because each commit of 500 tables would otherwise wake 500 threads
_waiting: defaultdict[str, set[threading.Event]] = defaultdict(set)
_lock = threading.Lock()


def announce(table: str) -> None:
    """Wakes the threads that wait for a commit of the table.

    It is called once the commit log has its line, so that they see how far the table is.
    """
    with _lock:
        _commits[table] += 1
        for changed in _waiting[table]:
            changed.set()


def commits(tables: Iterable[str]) -> int:
    """Returns how many commits of the tables were announced. Ask before you look, and give the number to `wait`."""
    return sum(_commits[table] for table in tables)


def wait(tables: Collection[str], since: int, seconds: float) -> None:
    """Returns when a commit of one of the tables has been announced since that number, or after `seconds`."""
    changed = threading.Event()
    with _lock:
        if commits(tables) != since:
            return
        for table in tables:
            _waiting[table].add(changed)
    changed.wait(seconds)
    with _lock:
        for table in tables:
            _waiting[table].discard(changed)
