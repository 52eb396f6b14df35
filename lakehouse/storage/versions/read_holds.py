"""Runs under way: maintenance keeps all that was there when the first of them began.

A run lists versions and files, and may read these, or later commits, hours afterwards. Each run is
known by a file that it has locked, so a killed run holds nothing.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path

from lakehouse.object_paths import ObjectPath
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.locks import alone, holder
from lakehouse.storage.versions import interruptions


@contextmanager
def under_way(settings: Settings) -> Iterator[None]:
    """Keeps all that is on disk now readable until the context ends. Raises SavepointError if a restore was cut off."""
    interruptions.check(settings)
    in_a_store = isinstance(settings.root, ObjectPath)
    # a reader without the right to write holds nothing; without a root there is nothing to remove
    if not in_a_store and not os.access(settings.root, os.W_OK):
        yield
        return
    path = layout.read_holds(settings) / f"{os.getpid()}-{uuid.uuid4().hex}"
    # others see it only once it is locked, as an object is from the first
    begun = path if in_a_store else path.with_name(f".{path.name}")
    with _locked(begun):
        if not in_a_store:
            begun.rename(path)
        try:
            yield
        finally:
            with suppress(PermissionError):
                path.unlink(missing_ok=True)


def _locked(path: Path) -> AbstractContextManager[object]:
    try:
        return alone(path)
    except PermissionError:
        if not isinstance(path, ObjectPath):
            raise
        return nullcontext()


def began(settings: Settings) -> datetime | None:
    """Returns the time when the first of the runs under way began; None if there is none."""
    folder = layout.read_holds(settings)
    instants = (
        [_held(path) for path in folder.iterdir() if not path.name.startswith(".")]
        if folder.is_dir()
        else []
    )
    return min(filter(None, instants), default=None)


def _held(path: Path) -> datetime | None:
    """Returns the time since which the file is locked. Removes it and returns None if it is not, since its process was killed."""
    try:
        if holder(path):
            return datetime.fromtimestamp(path.stat().st_mtime, UTC)
        path.unlink()
    except FileNotFoundError:  # it has just ended
        pass
    return None
