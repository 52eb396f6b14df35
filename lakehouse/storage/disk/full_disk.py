"""The error of a command whose disk is full, in one line, whether Python, Delta or the JVM found it."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage.disk import root

_FULL = re.compile(r"[^\n]*(No space left on device|Disk quota exceeded)[^\n]*", re.IGNORECASE)
_SHOWN = 300  # characters of the line found


@contextmanager
def named(settings: Settings, doing: str, stands: Callable[[], str]) -> Iterator[None]:
    """Raises JobError in place of an error that comes from a full disk.

    :param doing: what is written, for the message.
    :param stands: returns the state after that, for the message.
    """
    try:
        yield
    except Exception as err:
        if not (found := _found(err)):
            raise
        raise JobError(
            f"root={settings.root}, free={root.free(settings):,} bytes: {doing} needs room on the disk, and it is full "
            f"({found}); {stands()}; make room, and run this again, which goes on with it"
        ) from err


def _found(err: BaseException | None) -> str:
    """Returns the line of the error, or of one that led to it, about a full disk; empty if there is none."""
    seen: set[int] = set()
    while err is not None and id(err) not in seen:
        seen.add(id(err))
        if match := _FULL.search(str(err)):
            return match[0].strip()[:_SHOWN]
        err = err.__cause__ or err.__context__
    return ""
