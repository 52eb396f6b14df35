"""Commit files of an object store that this process has just written or read, where each look is a request that is paid for.

A commit file never changes, so its content is the same as long as the table is. That the table was removed, or made again,
is noticed `_WITHIN` later at most; a commit is refused by the store itself.
"""

import io
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lakehouse.object_paths import ObjectPath, Version

if TYPE_CHECKING:
    from deltalake import DeltaTable

_WITHIN = 5.0  # seconds
_MOST = 512  # commit files

_recent: OrderedDict[ObjectPath, tuple[float, bytes, str]] = OrderedDict()
_lock = threading.Lock()
_tables: dict[Path, "DeltaTable"] = {}
_opening = threading.Lock()


def written(file: ObjectPath, content: bytes, version: Version) -> None:
    """Notes a commit file that this process has just written."""
    with _lock:
        _recent[file] = time.monotonic(), content, "".join(version.values())
        _recent.move_to_end(file)
        while len(_recent) > _MOST:
            _recent.popitem(last=False)


def content(file: Path) -> bytes:
    """Returns what a commit file holds. Raises FileNotFoundError."""
    return _read(file)[0] if isinstance(file, ObjectPath) else file.read_bytes()


def opened(file: Path) -> BinaryIO:
    """Opens a commit file to be read line by line. Raises FileNotFoundError."""
    return io.BytesIO(_read(file)[0]) if isinstance(file, ObjectPath) else file.open("rb")


def names(folder: Path) -> list[str]:
    """Returns the names in a folder. Raises FileNotFoundError, NotADirectoryError."""
    if isinstance(folder, ObjectPath):
        return [path.name for path in folder.iterdir()]
    return os.listdir(folder)


def identity(file: Path) -> str:
    """Returns what another commit file of that name would not have: its time, or what a store knows it by."""
    return _read(file)[1] if isinstance(file, ObjectPath) else str(file.stat().st_mtime_ns)


def _read(file: ObjectPath) -> tuple[bytes, str]:
    with _lock:
        at, content, stamp = _recent.get(file, (float("-inf"), b"", ""))
    if time.monotonic() - at > _WITHIN:
        content, version = file.read_versioned()
        written(file, content, version)
        stamp = "".join(version.values())
    return content, stamp


def present(
    path: Path,
    opened: Callable[[Path], "DeltaTable"],
    stamp: Callable[[Path, int], str],
) -> "DeltaTable":
    """Returns a table of a store for a look at its present files alone: of one that was opened before, later commits are read."""
    with _opening:
        table = _tables.pop(path, None)
        if table is not None and stamp(path, table.version()):
            table.update_incremental()
        else:
            table = opened(path)
        _tables[path] = table
        return table
