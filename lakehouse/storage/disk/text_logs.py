"""Logs of text: older logs are kept beside the present one, the newest of them with the ending `.1`."""

import os
import shutil
from pathlib import Path


def set_aside(log: Path, kept: int) -> None:
    """Makes the log the newest of the older logs, up to `kept` of which stay. Makes its folder if that is not there."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        _make_room(log, kept)
        log.replace(_older(log, 1))


def shorten(log: Path, longest: int, kept: int) -> None:
    """Sets aside, as `set_aside` does, a log of more than `longest` bytes that a running process keeps open.

    The log is copied and emptied. A line written in between is lost.
    """
    if size(log) > longest:
        _make_room(log, kept)
        shutil.copy(log, _older(log, 1))
        os.truncate(log, 0)


def size(log: Path) -> int:
    """Returns the log's size in bytes; 0 if it is not there."""
    return log.stat().st_size if log.exists() else 0


def tail(log: Path, lines: int) -> list[str] | None:
    """Returns the last lines of the log; None if it is not there."""
    return log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else None


def _make_room(log: Path, kept: int) -> None:
    for number in range(kept, 1, -1):
        if (older := _older(log, number - 1)).exists():
            older.replace(_older(log, number))


def _older(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
