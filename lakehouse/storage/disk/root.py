"""The root itself, below which all lies."""

import os
import shutil
from pathlib import Path

from lakehouse.settings import Settings


def nearest(settings: Settings) -> Path:
    """The root, or the folder in which it is going to be made."""
    folders = (settings.root, *settings.root.parents)
    return next(folder for folder in folders if folder.exists())


def make(settings: Settings) -> None:
    """Makes the root, if there is none, for this user alone: it has the rows, and what decides who writes them."""
    settings.root.parent.mkdir(parents=True, exist_ok=True)
    settings.root.mkdir(mode=0o700, exist_ok=True)


def others_read(settings: Settings) -> bool:
    """Whether other users of this machine may list the root."""
    return settings.root.exists() and bool(settings.root.stat().st_mode & 0o055)


def can_write(settings: Settings) -> bool:
    """Whether this process may write there, or make it."""
    return os.access(nearest(settings), os.W_OK)


def free(settings: Settings) -> int:
    """How many bytes there is room for."""
    return shutil.disk_usage(nearest(settings)).free


def copy_root(settings: Settings, to: Path) -> None:
    """Copies all that is there, beside what `to` has already."""
    shutil.copytree(settings.root, to, dirs_exist_ok=True)
