"""Who has committed: a step that waits for its input is woken by the step of this process that feeds it.

What another process commits nobody tells; it is seen at the next look.
"""

import threading
from collections import Counter

_commits: Counter[str] = Counter()  # of each table, by this process
_changed = threading.Condition()


def tell(table: str) -> None:
    """Wakes those who wait for a commit of the table.

    Its line of the commit log is written, so that they know how far it is.
    """
    with _changed:
        _commits[table] += 1
        _changed.notify_all()


def told(table: str) -> int:
    """How often the table was told of; what `wait` is given, before one looks."""
    return _commits[table]


def wait(table: str, since: int, seconds: float) -> None:
    """Returns when the table has been told of since then, or after so many seconds."""
    with _changed:
        _changed.wait_for(lambda: _commits[table] != since, seconds)
