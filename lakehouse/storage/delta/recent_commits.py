"""Commit files of an object store that this process has just written or read, where each look is a request that is paid for.

A commit file never changes, so its content is the same as long as the table is. That the table was removed, or made again,
is noticed `_WITHIN` later at most; a commit is refused by the store itself.
"""

import threading
import time
from collections import OrderedDict

from lakehouse.object_paths import ObjectPath, Version

_WITHIN = 5.0  # seconds
_MOST = 512  # commit files

_recent: OrderedDict[ObjectPath, tuple[float, bytes, str]] = OrderedDict()
_lock = threading.Lock()


def written(file: ObjectPath, content: bytes, version: Version) -> None:
    """Notes a commit file that this process has just written."""
    with _lock:
        _recent[file] = time.monotonic(), content, "".join(version.values())
        _recent.move_to_end(file)
        while len(_recent) > _MOST:
            _recent.popitem(last=False)


def read(file: ObjectPath) -> tuple[bytes, str]:
    """Returns what a commit file holds, and what the store knows that by. Raises FileNotFoundError."""
    with _lock:
        at, content, stamp = _recent.get(file, (float("-inf"), b"", ""))
    if time.monotonic() - at > _WITHIN:
        content, version = file.read_versioned()
        written(file, content, version)
        stamp = "".join(version.values())
    return content, stamp
