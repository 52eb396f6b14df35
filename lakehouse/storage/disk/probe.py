"""A check that an object store keeps two writers apart, by four small writes, before a process writes to it."""

import time
import uuid
from contextlib import suppress
from functools import cache
from statistics import median

from lakehouse.errors import SettingsError
from lakehouse.object_paths import ObjectPath
from lakehouse.paths import below


@cache  # once in the life of a process
def check(root: ObjectPath) -> None:
    """Raises SettingsError, in one line, if the store cannot be written to, or lets a writer overwrite what another wrote."""
    path = below(root, "_probe", uuid.uuid4().hex)
    assert isinstance(path, ObjectPath)
    try:
        fault = _fault(path)
    except OSError as err:
        raise SettingsError(
            f"root={root}: it must be readable and writable, and is not ({err.strerror or err}); {_fix(err)}"
        ) from err
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    if fault:
        raise SettingsError(
            f"root={root}: {fault}, so two writers of a table would lose rows; use a store that has conditional writes "
            "(`lakehouse doctor` says more)"
        )


def seconds(root: ObjectPath, times: int = 10) -> tuple[float, float]:
    """Returns the median seconds of a small write and of a read. Raises OSError."""
    path = below(root, "_probe", uuid.uuid4().hex)
    assert isinstance(path, ObjectPath)
    writes, reads = list[float](), list[float]()
    try:
        for _ in range(times):
            begun = time.monotonic()
            path.write_bytes(b"1")
            written = time.monotonic()
            path.read_bytes()
            writes.append(written - begun)
            reads.append(time.monotonic() - written)
    finally:
        path.unlink(missing_ok=True)
    return median(writes), median(reads)


def _fault(path: ObjectPath) -> str:
    """Returns the condition that the store does not honour; empty if it honours both."""
    first = path.create(b"1")
    if first is None:
        return "it refuses to create an object that is not there"
    if path.create(b"2") is not None or path.read_bytes() != b"1":
        return "it creates an object that is there already"
    second = path.swap(b"3", first)
    if second is None:
        return "it refuses to replace an object that nobody has changed"
    if path.swap(b"4", first) is not None or path.read_bytes() != b"3":
        return "it replaces an object that another has changed"
    return ""


def _fix(err: OSError) -> str:
    if isinstance(err, PermissionError):
        return "check the credentials (AWS_ACCESS_KEY_ID, a profile or a role) and their right to read, write, list and delete"
    if isinstance(err, FileNotFoundError):
        return "make the bucket, or name another"
    return "check AWS_ENDPOINT_URL, AWS_REGION and the network; a plain http:// endpoint needs AWS_ALLOW_HTTP=true"
