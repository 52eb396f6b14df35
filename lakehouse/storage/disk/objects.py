"""Small files in an object store: what `files` and `locks` do on a disk, done by whole objects and conditional writes."""

import io
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse.object_paths import ObjectPath, Version

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

_log = logging.getLogger(__name__)

WITHIN = 30.0  # seconds without a sign of life, after which a lock counts as left by a process that ended
_RENEWAL = 5.0  # seconds between two signs of life
_LOOK = 0.5  # seconds between two looks at a lock that another process has
_OF_HADOOP = {"s3": "s3a"}  # the scheme by which Hadoop knows a store, where it is another
_ATTEMPTS = 50  # at adding to an object to which others add, too


def append(path: ObjectPath, content: bytes) -> None:
    """Adds to an object by writing it whole, unless another writer was faster: then again. Raises OSError."""
    mine: bytes | None = None
    for _ in range(_ATTEMPTS):
        try:
            before, version = path.read_versioned()
        except FileNotFoundError:
            before, version = b"", None
        # the write was made, its answer was lost, and another writer has added to it since
        if mine is not None and before.startswith(mine):
            return
        mine = before + content
        if (path.create(mine) if version is None else path.swap(mine, version)) is not None:
            return
    raise OSError(f"file={path}: others wrote to it {_ATTEMPTS} times meanwhile; run this again")


def touch(path: ObjectPath) -> bool:
    """Has the object written just now, and returns True if it was there; if not, it is made."""
    try:
        content, version = path.read_versioned()
    except FileNotFoundError:
        path.create(b"")
        return False
    path.swap(content, version)
    return True


def now(folder: ObjectPath) -> float:
    """Returns the time by the store's clock: that of an object written for the purpose. Raises OSError."""
    path = folder / f".clock-{uuid.uuid4().hex}"
    path.write_bytes(b"")
    try:
        return path.stat().st_mtime
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


class Lock:
    """A lock between processes of any host: an object that its holder writes again every few seconds.

    No two clocks are compared: another process takes it once it has seen it unchanged for `WITHIN` by its own clock, or
    at once if the holder was a process of this machine that has ended.
    A holder that could not renew it for two thirds of that time, or that slept, finds out by `is_held`. What it does
    until it looks, the epoch of the table refuses (`committer.take_over`).
    """

    def __init__(self, path: ObjectPath, note: str) -> None:
        self._path, self._note = path, note
        self._version: Version | None = None
        self._tried: list[
            bytes
        ] = []  # what was written since it was known to be held, the answer perhaps lost
        self._until = 0.0
        self._ended = threading.Event()
        self._renewal: threading.Thread | None = None

    def take(self, wait: float | None) -> None:
        """Takes the lock. Raises BlockingIOError if another process has it for longer than `wait` seconds."""
        end = None if wait is None else time.monotonic() + wait
        seen: tuple[Version, float] | None = None
        while True:
            begun = time.monotonic()
            value, version = _read(self._path)
            if version is None:
                self._version = self._path.create(self._content())
            elif value.get("released"):
                self._version = self._path.swap(self._content(), version)
            else:
                if seen is None or seen[0] != version:
                    seen = version, begun
                if begun - seen[1] >= WITHIN or _has_ended(value):
                    self._version = self._path.swap(self._content(), version)
            if self._version is not None:
                self._hold(begun)
                return
            if (
                end is not None
                and time.monotonic() >= end
                and not _may_expire(self._path, seen, begun)
            ):
                raise BlockingIOError(str(value.get("holder", "")))
            time.sleep(_LOOK)

    @property
    def is_held(self) -> bool:
        return self._version is not None and time.monotonic() < self._until

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._renewal:
            self._renewal.join()
        if self._version is not None:
            with suppress(OSError):  # it expires
                self._path.swap(self._content(released=True), self._version)
        self._version = None

    def _hold(self, begun: float) -> None:
        self._until = begun + WITHIN * 2 / 3
        name = f"lock {self._path.name}"
        self._renewal = threading.Thread(target=self._renew, name=name, daemon=True)
        self._renewal.start()

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWAL):
            begun = time.monotonic()
            try:
                self._version = self._renewed()
            except OSError as err:
                _log.warning(f"file={self._path}: it cannot be renewed, and expires ({err})")
                continue
            self._tried.clear()
            if self._version is None:
                _log.warning(
                    f"file={self._path}: another process has taken it, since this one was late to renew it"
                )
                return
            self._until = begun + WITHIN * 2 / 3

    def _renewed(self) -> Version | None:
        assert self._version is not None
        self._tried.append(self._content())
        if version := self._path.swap(self._tried[-1], self._version):
            return version
        # one of the writes of an outage may have been made
        content, version = self._path.read_versioned()
        return version if content in self._tried else None

    def _content(self, *, released: bool = False) -> bytes:
        # the nonce makes each version another one: a store may know a version by its content alone
        value: dict[str, Any] = {"holder": self._note, "nonce": uuid.uuid4().hex} | _this_process(
            os.getpid()
        )
        return json.dumps(value | ({"released": True} if released else {})).encode()


def holder(path: ObjectPath) -> str:
    """Returns what the holder of a lock noted; empty if no process holds it now, by the store's clock."""
    value, version = _read(path)
    if version is None or value.get("released") or _has_ended(value):
        return ""
    age = now(path.parent) - path.stat().st_mtime
    return "" if age > WITHIN else str(value.get("holder") or "unknown")


@cache
def _this_process(pid: int) -> dict[str, Any]:
    from lakehouse import processes  # psutil, which each command would import

    return {"pid": pid, "started": processes.started(pid), "place": _place()}


def _place() -> list[str]:
    """Returns the machine, its boot and the PID namespace, in which alone a pid says something."""
    from lakehouse import processes

    with suppress(OSError):
        return [os.uname().nodename, processes.boot_id(), os.readlink("/proc/self/ns/pid")]
    return []


def _has_ended(value: Mapping[str, Any]) -> bool:
    """Returns True if the holder was a process of this machine, and is not there any more."""
    from lakehouse import processes

    if not value.get("place") or value["place"] != _place():
        return False
    return processes.running(value.get("pid", 0), value.get("started", 0.0)) is None


def _may_expire(path: ObjectPath, seen: tuple[Version, float] | None, at: float) -> bool:
    """Returns True if the lock was left by a process that was killed, as the store's clock has it: then it is worth a wait."""
    with suppress(FileNotFoundError):
        return seen is not None and now(path.parent) - path.stat().st_mtime > 2 * _RENEWAL + 2
    return True


def _read(path: ObjectPath) -> tuple[dict[str, Any], Version | None]:
    try:
        content, version = path.read_versioned()
    except FileNotFoundError:
        return {}, None
    try:
        value = json.loads(content or b"{}")
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}, version


@contextmanager
def written_whole(path: Path) -> Iterator[Any]:
    """Yields what a writer of files writes to: the path itself on a disk, in an object store a buffer that is put in the end."""
    if not isinstance(path, ObjectPath):
        yield path
        return
    with path.open("wb") as buffer:
        yield buffer


def source(path: Path) -> Any:
    """Returns what a reader of Parquet reads: the path itself on a disk, else what the object holds. Raises FileNotFoundError."""
    return io.BytesIO(path.read_bytes()) if isinstance(path, ObjectPath) else path


def dataset(files: Sequence[Path], schema: "pa.Schema | None" = None) -> "ds.Dataset":
    """Returns Parquet files as a dataset. A file from before a column of the schema was added has null there."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    if not any(isinstance(file, ObjectPath) for file in files):
        return ds.dataset([str(file) for file in files], schema=schema, format="parquet")
    kind = ds.ParquetFileFormat()
    parts = [kind.make_fragment(pa.BufferReader(file.read_bytes())) for file in files]
    return ds.FileSystemDataset(parts, schema or parts[0].physical_schema, kind)


def for_spark(path: Path) -> str:
    """Returns the URL, or the path, by which Spark reads and writes the files."""
    if not isinstance(path, ObjectPath):
        return str(path)
    name = _OF_HADOOP.get(path.scheme)
    return str(path).replace(f"{path.scheme}://", f"{name}://", 1) if name else str(path)
