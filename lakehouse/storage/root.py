"""The root itself, below which all lies."""

import os
import shutil
from pathlib import Path

from lakehouse.settings import Settings


def nearest(settings: Settings) -> Path:
    """The root, or the folder in which it is going to be made."""
    folders = (settings.root, *settings.root.parents)
    return next(folder for folder in folders if folder.exists())


def can_write(settings: Settings) -> bool:
    """Whether this process may write there, or make it."""
    return os.access(nearest(settings), os.W_OK)


def free(settings: Settings) -> int:
    """How many bytes there is room for."""
    return shutil.disk_usage(nearest(settings)).free


def copy_root(settings: Settings, to: Path) -> None:
    """Copies all that is there, beside what `to` has already."""
    shutil.copytree(settings.root, to, dirs_exist_ok=True)
