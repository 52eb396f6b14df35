"""Locks between processes: a lock is on a file, and ends with the process that has it."""

import errno
import fcntl
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO

from lakehouse.object_paths import ObjectPath
from lakehouse.storage.disk import objects

READ_ONLY = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
)  # the number of an OSError: another user's folder, or a disk that is read-only
_LOOK = 0.25  # seconds between two attempts to take a lock that another has


class Locked(Exception):
    """Another process has the lock. `holder` is what that process noted in the file."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(
            f"file={path}: one process at a time has it, and another does ({holder}); wait for that"
        )
        self.holder = holder


def alone(
    path: Path,
    wait: float | None = None,
    note: str = "",
    refusal: Callable[[str], Exception] | None = None,
) -> AbstractContextManager[object]:
    """Takes the lock: until the context ends, no other process has the file, or what the file stands for.

    `wait`: the seconds to wait, by default without limit. `note`: what others read of this process (`holder`).
    Raises Locked if another process has it for longer, or the error that `refusal` makes of that process's note.
    """
    if isinstance(path, ObjectPath):
        lock = objects.Lock(path, note)
        try:
            lock.take(wait)
        except BlockingIOError as err:
            raise (refusal(str(err)) if refusal else Locked(path, str(err))) from err
        return lock
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    try:
        _take(file, wait)
    except BlockingIOError as err:
        with file:
            holder = _noted(file)
        raise (refusal(holder) if refusal else Locked(path, holder)) from err
    if note:
        try:
            file.truncate(0)
            file.write(note)
            file.flush()
        except OSError:  # a full disk, say: who gets an error must not have the lock
            with suppress(OSError):
                file.close()
            raise
    return file  # its end closes the file, which releases the lock


def alone_if_allowed(path: Path) -> AbstractContextManager[object]:
    """Takes the lock as `alone` does. A process that may only read there gets None: it changes nothing and waits for no other.

    It also gets None if there is no root yet, around the lock's folder: a command that only reads makes none.
    """
    if not path.parents[1].exists():
        return nullcontext()
    try:
        return alone(path)
    except OSError as err:
        if err.errno not in READ_ONLY:
            raise
        return nullcontext()


def holder(path: Path) -> str:
    """Returns what the process that has the lock noted; empty if none has it."""
    if isinstance(path, ObjectPath):
        return objects.holder(path)
    try:
        file = path.open()
    except FileNotFoundError:
        return ""
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _noted(file)
    return ""


def _take(file: IO[str], wait: float | None) -> None:
    if wait is None:
        fcntl.flock(file, fcntl.LOCK_EX)
        return
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(_LOOK)


def _noted(file: IO[str]) -> str:
    file.seek(0)
    return file.read() or "unknown"
