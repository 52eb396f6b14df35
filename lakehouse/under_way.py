"""Runs that are under way: upkeep keeps all that there was when the first of them began.

A run has been told which versions and files there are, and may read these, or the commits since then, hours later. Each is known
by a file that it has locked, so that one that was killed holds nothing.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import portalocker

from lakehouse.files import alone
from lakehouse.settings import Settings


@contextmanager
def under_way(settings: Settings) -> Iterator[None]:
    """What is on disk now can be read until this ends."""
    if not os.access(settings.root, os.W_OK):  # who may only read asks nobody to wait; where nothing is yet nothing can go
        yield
        return
    path = _folder(settings) / f"{os.getpid()}-{uuid.uuid4().hex}"
    with alone(_lock(settings)):
        path.parent.mkdir(exist_ok=True)
        file = path.open("w")
        portalocker.lock(file, portalocker.LOCK_EX)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()  # releases the lock


def began(settings: Settings) -> datetime | None:
    """When the first of those that are under way began; None if there is none."""
    if not _folder(settings).is_dir():
        return None
    with alone(_lock(settings)):
        found = [_held(path) for path in _folder(settings).iterdir()]
    return min(filter(None, found), default=None)


def _held(path: Path) -> datetime | None:
    """Since when the file is locked; one that is not, its process was killed, goes."""
    try:
        with path.open() as file:
            try:
                portalocker.lock(file, portalocker.LOCK_SH | portalocker.LOCK_NB)
            except portalocker.LockException:
                return datetime.fromtimestamp(path.stat().st_mtime, UTC)
            path.unlink()
    except FileNotFoundError:  # it has just ended
        pass
    return None


def _folder(settings: Settings) -> Path:
    return settings.root / "_locks" / "runs"


def _lock(settings: Settings) -> Path:
    return settings.root / "_locks" / "runs.lock"
