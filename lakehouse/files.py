"""Small files that one process writes and others read meanwhile: journals of lines, and values replaced as a whole."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import portalocker


def append_line(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        torn = size > 0 and file.read(1) != b"\n"  # a crash while writing: closed here, left out when read
        file.write((b"\n" if torn else b"") + text.encode() + b"\n")
        os.fsync(file.fileno())


def lines_backwards(path: Path, block: int = 1 << 16) -> Iterator[str]:
    """The lines of JSON objects of a file, last first; a torn one (a crash while writing) is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        position, rest = file.seek(0, os.SEEK_END), b""
        while position:
            step = min(block, position)
            position -= step
            file.seek(position)
            rest, *parts = (file.read(step) + rest).split(b"\n")
            yield from (p.decode() for p in reversed(parts) if p.endswith(b"}"))
        if rest.endswith(b"}"):
            yield rest.decode()


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time has the file, and with it what it stands for; the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        portalocker.lock(file, portalocker.LOCK_EX)
        yield


def replace_file(path: Path, value: object) -> None:
    """Writes `value` as JSON in one step: a reader sees the file before or this one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(value, indent=1))
    beside.replace(path)
