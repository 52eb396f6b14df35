"""The rules of each commit: a batch is committed once, and a writer that loses a version tries the next one.

Commits need no lock: a version is made by one writer, whole or not at all.
"""

import time
from collections.abc import Callable
from pathlib import Path

from lakehouse.errors import CommitError

# seconds: of three writers that commit without a pause one was seen to lose 98 times in a row, for 7 s
_PATIENCE = 60.0


def commit(path: Path, attempt: Callable[[], int | None]) -> int:
    """Returns the version that an attempt made; one returns None if another writer was faster.

    Raises CommitError if none has made a version within a minute.
    """
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        version = attempt()
        if version is not None:
            return version
    raise CommitError(
        f"table={path.name}: other writers have committed for {_PATIENCE:.0f} s without a pause; end them, and run this again"
    )


def check_first(path: Path, app: str, batch: int, last: int | None) -> None:
    """Raises CommitError if `app` has committed that batch, of which `last` is the last: two writers exclude each other."""
    if last is not None and last >= batch:
        raise CommitError(
            f"table={path.name}, batch={batch}: {app} has committed batch {last} already, so another process writes the "
            "table, too; end one of them"
        )
