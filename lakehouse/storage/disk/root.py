"""The root itself, below which everything lies."""

import os
import shutil
from pathlib import Path

from lakehouse.errors import SettingsError
from lakehouse.object_paths import ObjectPath
from lakehouse.settings import Settings
from lakehouse.storage.disk import probe


def nearest(settings: Settings) -> Path:
    """Returns the root, or the nearest folder that exists above it; for a root in an object store the folder of this host."""
    root = settings.own_folder
    folders = (root, *root.parents)
    return next(folder for folder in folders if folder.exists())


def make(settings: Settings) -> None:
    """Makes the root, if there is none, for this user alone: it has the rows, and the files that decide who writes them.

    :raises SettingsError: for one in an object store that is not safe (`probe`).
    """
    if isinstance(settings.root, ObjectPath):
        probe.check(settings.root)
    settings.own_folder.parent.mkdir(parents=True, exist_ok=True)
    settings.own_folder.mkdir(mode=0o700, exist_ok=True)


def is_in_a_store(settings: Settings) -> bool:
    return isinstance(settings.root, ObjectPath)


def seconds_of_store(settings: Settings) -> tuple[float, float]:
    """Returns the median seconds of a write and of a read. Raises SettingsError for a store that is not safe (`probe`)."""
    assert isinstance(settings.root, ObjectPath)
    probe.check(settings.root)
    return probe.seconds(settings.root)


def check_on_a_disk(settings: Settings, what: str) -> None:
    """Raises SettingsError for a root in an object store, where there is no `what` yet."""
    if isinstance(settings.root, ObjectPath):
        raise SettingsError(
            f"root={settings.root}: there are no {what} of a root in an object store yet; use the store's own versions or a "
            "copy of the folder while its jobs are stopped"
        )


def others_read(settings: Settings) -> bool:
    """Returns True if other users of this machine may list or enter the root."""
    folder = settings.own_folder
    return folder.exists() and bool(folder.stat().st_mode & 0o055)


def can_write(settings: Settings) -> bool:
    """Returns True if this process may write in the root, or make it."""
    return os.access(nearest(settings), os.W_OK)


def free(settings: Settings) -> int:
    """Returns the number of bytes that are free on the root's disk."""
    return shutil.disk_usage(nearest(settings)).free


def copy_root(settings: Settings, to: Path) -> None:
    """Copies everything in the root, beside what `to` has already: a folder of the same disk or store."""
    if isinstance(settings.root, ObjectPath) and isinstance(to, ObjectPath):
        for path, _ in settings.root.walk_files():
            path.copy_to(to / str(path.relative_to(settings.root)))
        return
    shutil.copytree(settings.root, to, dirs_exist_ok=True)
