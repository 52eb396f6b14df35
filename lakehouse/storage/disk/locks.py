"""Locks between processes: a lock is a file, and goes with the process that has it."""

import errno
import fcntl
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO

READ_ONLY = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
)  # of an OSError: another user's folder, or a disk to read
_LOOK = 0.25  # seconds between two attempts to take a lock that another has


class Locked(Exception):
    """Another process has the lock. `holder` is what that noted in the file."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(
            f"file={path}: one process at a time has it, and another does ({holder}); wait for that"
        )
        self.holder = holder


def alone(path: Path, wait: float | None = None, note: str = "") -> AbstractContextManager[object]:
    """Takes the lock. One process at a time has the file, and with it what it stands for, until the context ends.

    `wait`: for so many seconds, by default without limit. `note`: what others read of this process
    (`holder`). Raises Locked if another has it for longer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    try:
        _take(file, wait)
    except BlockingIOError as err:
        with file:
            raise Locked(path, _noted(file)) from err
    if note:
        try:
            file.truncate(0)
            file.write(note)
            file.flush()
        except OSError:  # the disk is full, say: who did not get it must not have it
            with suppress(OSError):
                file.close()
            raise
    return file  # its end closes the file, which releases the lock


def alone_if_allowed(path: Path) -> AbstractContextManager[object]:
    """As `alone`; of one who may only read there the context has None: he changes nothing, and waits for nobody.

    So it is where there is no root yet, which is around the folder: a command that looks makes none.
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
    """What the process that has the lock noted; empty if none has it."""
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
