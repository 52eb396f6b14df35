"""Small files that one process writes and others read meanwhile: commit logs of lines, and values replaced as a whole."""

import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from lakehouse.object_paths import ObjectPath, Stat
from lakehouse.storage.disk import objects
from lakehouse.storage.disk.typed_values import checked, typed

_log = logging.getLogger(__name__)

Value = TypeVar("Value")
_UNREADABLE = ".unreadable-"  # in the name of a file that was moved aside; then when that was


def append_line(path: Path, text: str) -> None:
    """Adds the line, or lines, and has them on disk when it returns. Raises OSError if they are not there whole."""
    if isinstance(path, ObjectPath):
        objects.append(path, text.encode() + b"\n")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        # a crash while writing: closed here, left out when read
        torn = size > 0 and file.read(1) != b"\n"
        left = memoryview((b"\n" if torn else b"") + text.encode() + b"\n")
        while (
            left
        ):  # a disk that is almost full takes a part and says nothing; of the rest it says why
            left = left[file.write(left) :]
        os.fsync(file.fileno())


def lines_backwards(path: Path, block: int = 1 << 16) -> Iterator[str]:
    """The lines of JSON objects of a file, last first; none if it is not there.

    A torn one (a crash while writing) is left out.
    """
    with suppress(FileNotFoundError):
        yield from backwards(path.open("rb"), block)


def backwards(opened: BinaryIO, block: int = 1 << 16) -> Iterator[str]:
    """Yields the lines of an open file, the last first, and closes it in the end."""
    with opened as file:
        position, rest = file.seek(0, os.SEEK_END), b""
        while position:
            step = min(block, position)
            position -= step
            file.seek(position)
            rest, *parts = (file.read(step) + rest).split(b"\n")
            yield from (p.decode(errors="replace") for p in reversed(parts) if p.endswith(b"}"))
        if rest.endswith(b"}"):
            yield rest.decode(errors="replace")


def replace_file(path: Path, value: object) -> None:
    """Writes `value` as JSON, as `replace_text` does."""
    replace_text(path, json.dumps(value, indent=1))


def replace_text(path: Path, text: str) -> None:
    """Writes the file as `replace_bytes` does."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Writes the file in one step: a reader sees the one before or this one, after a crash of the machine, too."""
    if isinstance(path, ObjectPath):
        path.write_bytes(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # two hosts may have one root, so a process id alone would not be a name of its own
    beside = path.with_suffix(f".{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with suppress(OSError):  # the disk is full, say: the error that is raised says so
            beside.unlink(missing_ok=True)
        raise


def read_value(
    path: Path,
    kind: type[Value],
    meaning: str,
    *,
    later: bool = False,
    check: Callable[[Value], object] = lambda value: None,
) -> Value | None:
    """Returns what `replace_file` wrote, a value of this type; None if there is no file.

    A file that holds something else is moved aside, and the user reads on standard error which file
    that is, where it is now, and what follows (`meaning`); then it counts as not there.

    :param later: leaves out unknown fields, as `typed` does.
    :param check: raises ValueError for a value that is none.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        read = typed if is_dataclass(kind) else checked
        value: Value = read(kind, json.loads(content), later=later)
        check(value)
        return value
    except (ValueError, TypeError, KeyError, AttributeError) as err:
        if where := set_aside(path, content):
            what = f"JSON as the lakehouse writes it, and it holds something else ({type(err).__name__}: {err})"
            _log.warning(f"file={path}: {what}; {where}; {meaning}")
        return None


def read_json(path: Path) -> Any:
    """Returns what `replace_file` wrote. Raises OSError or ValueError if that cannot be read."""
    return json.loads(path.read_text())


def exists(path: Path) -> bool:
    return path.exists()


def readable(folder: Path) -> bool:
    """Returns True if a folder is there, and can be listed."""
    return isinstance(folder, ObjectPath) or os.access(folder, os.R_OK | os.X_OK)


def remove(path: Path) -> None:
    """Removes the file, if it is there."""
    path.unlink(missing_ok=True)


def link(path: Path, to: Path) -> None:
    """A second name for a file that never changes."""
    if isinstance(path, ObjectPath) and isinstance(to, ObjectPath):
        path.copy_to(to)
        return
    try:
        os.link(path, to)
    except OSError as err:
        if isinstance(err, FileNotFoundError | FileExistsError):
            raise
        shutil.copyfile(path, to)  # another disk, or one without links


def make_folder(folder: Path) -> None:
    """Makes an empty folder that is seen to be there: in an object store by an object in it. Raises FileExistsError."""
    if isinstance(folder, ObjectPath):
        (folder / ".folder").create(b"")
        return
    folder.mkdir(parents=True)


def link_tree(folder: Path, to: Path) -> None:
    """Gives all files below a folder a second name below another: files that never change."""
    if isinstance(folder, ObjectPath):
        for file, _ in folder.walk_files():
            link(file, to / str(file.relative_to(folder)))
        return
    for path in sorted(folder.rglob("*")):
        beside = to / path.relative_to(folder)
        if path.is_dir():
            beside.mkdir(parents=True)
        else:
            link(path, beside)


def rename(path: Path, to: Path) -> None:
    """Gives a file or folder another name. In an object store it has both for a moment. Raises FileNotFoundError."""
    if not isinstance(path, ObjectPath):
        path.rename(to)
    elif path.is_file():
        link(path, to)
        path.unlink(missing_ok=True)
    else:
        link_tree(path, to)
        path.remove_tree()


def remove_tree(folder: Path) -> None:
    """Removes a folder with all that is in it, as far as it can be removed."""
    if isinstance(folder, ObjectPath):
        with suppress(OSError):
            folder.remove_tree()
        return
    shutil.rmtree(folder, ignore_errors=True)


def touch(path: Path) -> bool:
    """Has the file written just now; whether it was there. If not, it is made."""
    if isinstance(path, ObjectPath):
        return objects.touch(path)
    try:
        os.utime(path)
    except FileNotFoundError:
        path.touch()
        return False
    return True


def modified(path: Path) -> float | None:
    """Returns the time at which a file was last written, or a folder got or lost a file, by the clock of its file system.

    None if it is not there.
    """
    now = status(path)
    return now.st_mtime if now else None


def status(path: Path | str) -> os.stat_result | Stat | None:
    """Returns what the file system has on a file or a folder; None if it is not there."""
    if isinstance(path, ObjectPath):
        return path.stat() if path.exists() else None
    try:
        # opened, since a network file system may answer a mere look from its cache
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return os.fstat(opened)
    finally:
        os.close(opened)


def file_system_now(folder: Path) -> float:
    """Returns the time by the clock of the file system: that of a file written for the purpose.

    Who cannot write there starts nothing there either: the clock of this host will do.
    """
    if isinstance(folder, ObjectPath):
        with suppress(OSError):
            return objects.now(folder)
        return time.time()
    path = folder / f".clock-{uuid.uuid4().hex}"
    try:
        path.touch()
        return path.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def checksum(path: Path) -> str | None:
    """The SHA-256 of what a file holds; None if it is no file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(path: Path) -> str:
    """A digest of what a file holds. Raises FileNotFoundError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, digester).hexdigest()


def digester() -> hashlib.blake2b:
    """By what `digest_of` digests, for one who reads a file anyhow."""
    return hashlib.blake2b(digest_size=16)


def aside_name(path: Path) -> Path:
    """Returns the path to which a file that holds garbage is moved: beside itself, with the time in its name."""
    return path.with_name(
        f"{path.name}{_UNREADABLE}{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:4]}"
    )


def moved_aside(path: Path) -> list[Path]:
    """The files of that name that were unreadable, and that nobody has removed since.

    Oldest first.
    """
    return sorted(path.parent.glob(f"{path.name}{_UNREADABLE}*"))


def moved_at(aside: Path) -> datetime:
    """Returns the time at which a file was moved aside."""
    return datetime.fromtimestamp(aside.stat().st_ctime, UTC)


def set_aside(path: Path, given: bytes | None = None) -> str:
    """Moves a file that holds garbage aside, and returns where it is now: in the words of a message.

    Empty if another process was faster, or if the file does not hold what was `given` any more: then it stays.
    """
    beside = aside_name(path)
    try:
        rename(path, beside)
        if given is not None and beside.read_bytes() != given:  # replaced by a sound one in between
            if path.exists():
                beside.unlink()
            else:
                rename(beside, path)
            return ""
    except FileNotFoundError:
        return ""
    except OSError as failed:  # who may only read
        return f"it stays where it is ({failed.strerror})"
    return f"it is now {beside.name}"
