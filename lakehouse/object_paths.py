"""Paths in an object store, with pathlib's methods as far as the library uses them.

A file is an object: it is written whole or not at all, and nothing is ever added to one. A folder is no more than
the beginning of names. Whatever of pathlib is not here raises TypeError, because these paths have no `__fspath__`:
nothing falls on a local file of that name.

Credentials, region and endpoint come from the store's own variables, such as `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT_URL`.
"""

import errno
import io
import os
import random
import re
import stat
import time
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PosixPath
from typing import IO, Any, ClassVar

from lakehouse.errors import SettingsError

Version = Mapping[str, str]
"""The content of an object, as its store knows it: by an ETag, and a generation where it has one."""

_WRITER = "writer"  # the attribute of an object that names the request that wrote it
_ATTEMPTS = 8  # at a conditional write, each with a pause twice as long as the one before
_PAUSE = 0.05  # seconds before the second attempt
_LONGEST = 160  # characters of what a store answers, in a message
_NOISE = (
    re.compile(r"^Generic \w+ error: "),
    re.compile(r"<\?xml[^>]*>"),
    re.compile(r" in [\d.]+[µm]?s"),
)
_RETRIES: Mapping[str, Any] = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}


@dataclass(frozen=True, slots=True)
class Stat:
    """The part of `os.stat_result` that an object has."""

    st_size: int
    st_mtime: float  # by the store's clock, to a second in most
    st_mode: int
    version: str = ""

    @property
    def st_ctime(self) -> float:
        return self.st_mtime


class ObjectPath(PosixPath):
    """The path of an object, or of the folder that names of objects begin with."""

    __slots__ = ()
    scheme: ClassVar[str] = ""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.scheme}:/{text}" if text.startswith("/") else text

    def __fspath__(self) -> str:
        raise TypeError(
            f"path={self}: it is in an object store, and this operation is for files on a disk"
        )

    def __reduce__(self) -> tuple:
        return to_path, (str(self),)

    @property
    def bucket(self) -> str:
        return self.parts[1]

    @property
    def key(self) -> str:
        return "/".join(self.parts[2:])

    def absolute(self) -> "ObjectPath":
        return self

    def expanduser(self) -> "ObjectPath":
        return self

    def resolve(self, strict: bool = False) -> "ObjectPath":
        return self

    # ---- whole objects

    def read_bytes(self) -> bytes:
        return self.read_versioned()[0]

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def write_bytes(self, data: Any) -> int:
        """Writes the object, whatever was there."""
        with _errors(self):
            _obstore().put(self._store, self.key, bytes(data), use_multipart=False)
        return len(data)

    def write_text(self, data: str, *_: Any, **__: Any) -> int:
        return self.write_bytes(data.encode())

    def read_versioned(self) -> tuple[bytes, Version]:
        """Returns what the object holds, and its version, for `swap`. Raises FileNotFoundError."""
        with _errors(self):
            got = _obstore().get(self._store, self.key)
            return bytes(got.bytes()), _version(got.meta)

    def create(self, data: bytes) -> Version | None:
        """Writes the object if none is there, and returns its version; None if another writer was first."""
        return self._conditional(data, "create")

    def swap(self, data: bytes, seen: Version) -> Version | None:
        """Writes the object if it still has the version that was seen, and returns the new one; None if it has another.

        None also for a write that was made, whose answer was lost, and after which another was made: look what it holds.
        """
        return self._conditional(data, dict(seen))

    def _conditional(self, data: bytes, mode: Any) -> Version | None:
        """Writes under a condition. What a store answers to a request that it has carried out may be lost, or be "exists".

        So each request names its writer, and the object itself says who wrote it.
        """
        exceptions, mine = _exceptions(), uuid.uuid4().hex
        for attempt in range(_ATTEMPTS):
            try:
                put = _obstore().put(
                    self._store,
                    self.key,
                    data,
                    mode=mode,
                    use_multipart=False,
                    attributes={_WRITER: mine},
                )
                return _version(put)
            except (FileNotFoundError, exceptions.BaseError) as err:
                refused = isinstance(
                    err, exceptions.AlreadyExistsError | exceptions.PreconditionError
                )
                now = self._written_by()
                if now and now[0] == mine:
                    return now[1]
                if mode == "create" and now:
                    return None
                if mode != "create" and (now is None or now[1] != mode):
                    return None
                # S3 answers 409 to a write beside a deletion or another write: nobody has won yet
                if not refused and attempt == _ATTEMPTS - 1:
                    raise _os_error(self, err) from err
            time.sleep(_PAUSE * 2**attempt * random.uniform(0.5, 1))
        raise OSError(
            errno.EAGAIN, "the store refuses a conditional write, and has no other", str(self)
        )

    def _written_by(self) -> tuple[str, Version] | None:
        try:
            with _errors(self):
                got = _obstore().get(self._store, self.key, options={"head": True})
                return str(got.attributes.get(_WRITER, "")), _version(got.meta)
        except FileNotFoundError:
            return None

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        with _errors(self):
            _obstore().delete(self._store, self.key)

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        """Makes an empty object, unless there is one."""
        self.create(b"")

    def copy_to(self, target: "ObjectPath") -> None:
        """Copies the object within its store, without its passing through this process."""
        with _errors(self):
            _obstore().copy(self._store, self.key, target.key)

    # ---- as files

    def open(self, mode: str = "r", *_: Any, **__: Any) -> IO[Any]:  # type: ignore[override]
        if mode == "rb":
            return io.BytesIO(self.read_bytes())
        if mode == "r":
            return io.StringIO(self.read_text())
        if mode == "wb":
            return _Written(self)
        raise TypeError(f"path={self}, mode={mode!r}: an object is read, or written whole")

    def stat(self, *, follow_symlinks: bool = True) -> Stat:  # type: ignore[override]
        """Returns size, time and version of the object, of a folder the time of its last file. Raises FileNotFoundError."""
        if len(self.parts) > 2:
            try:
                with _errors(self):
                    meta = _obstore().head(self._store, self.key)
                version = "".join(_version(meta).values())
                return Stat(meta["size"], meta["last_modified"].timestamp(), stat.S_IFREG, version)
            except FileNotFoundError:
                pass
        if times := [stat_of.st_mtime for _, stat_of in self.walk_files()]:
            return Stat(0, max(times), stat.S_IFDIR)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        if not self.key:
            return False
        try:
            with _errors(self):
                _obstore().head(self._store, self.key)
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        return next(self.walk_files(), None) is not None

    # ---- folders

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a folder is there as soon as a file is in it."""

    def rmdir(self) -> None:
        """Does nothing: a folder is gone with its last file."""

    def iterdir(self) -> Generator["ObjectPath", None, None]:
        """Yields files and folders. Raises FileNotFoundError if nothing is there, as a disk does."""
        with _errors(self):
            listed = _obstore().list_with_delimiter(self._store, self._prefix)
        depth = len(self.parts) - 2
        paths = [*(meta["path"] for meta in listed["objects"]), *listed["common_prefixes"]]
        # others mark a folder by an object that is called as the folder
        names = [path.split("/")[depth] for path in paths if path.count("/") >= depth]
        if not names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        yield from (self / name for name in names)

    def walk_files(self) -> Iterator[tuple["ObjectPath", Stat]]:
        """Yields all files below, by one listing."""
        depth = len(self.parts) - 2
        with _errors(self):
            for part in _obstore().list(self._store, self._prefix, chunk_size=1000):
                for meta in part:
                    if meta["path"] == self.key:
                        continue
                    below = self.joinpath(*meta["path"].split("/")[depth:])
                    version = "".join(_version(meta).values())
                    at = meta["last_modified"].timestamp()
                    yield below, Stat(meta["size"], at, stat.S_IFREG, version)

    def glob(self, pattern: str) -> Iterator["ObjectPath"]:  # type: ignore[override]
        """Yields the paths of that pattern; a part of it that has no wildcard is not looked for by listing."""
        first, _, rest = pattern.partition("/")
        if any(sign in first for sign in "*?["):
            try:
                matches = [path for path in self.iterdir() if fnmatchcase(path.name, first)]
            except FileNotFoundError:
                return
        else:
            matches = [self / first] if rest or (self / first).exists() else []
        for path in matches:
            yield from path.glob(rest) if rest else (path,)

    def remove_tree(self) -> None:
        """Removes all files below."""
        paths = [path.key for path, _ in self.walk_files()]
        for start in range(0, len(paths), 1000):
            with _errors(self):
                _obstore().delete(self._store, paths[start : start + 1000])

    @property
    def _prefix(self) -> str | None:
        return self.key or None

    @property
    def _store(self) -> Any:
        return store(self.scheme, self.bucket)


class S3Path(ObjectPath):
    """A path in S3, or in a store that speaks its protocol."""

    __slots__ = ()
    scheme = "s3"


# obstore has Google's and Azure's stores, too; Spark does not write these safely yet
_KINDS: Mapping[str, type[ObjectPath]] = {S3Path.scheme: S3Path}


def to_path(text: str) -> Path:
    """Returns the path of a folder or file: in an object store if the text is the URL of a bucket in one, else on a disk."""
    scheme, _, rest = text.partition("://")
    if scheme not in _KINDS or not rest.strip("/"):
        return Path(text)
    return _KINDS[scheme](f"/{rest.strip('/')}")


@cache
def store(scheme: str, bucket: str) -> Any:
    """Returns obstore's client of a bucket. Raises SettingsError without obstore, or for options that it refuses."""
    try:
        from obstore.store import from_url
    except ImportError as err:
        raise SettingsError(
            f"root={scheme}://{bucket}: object stores need obstore; pip install 'unified-lakehouse[{scheme}]'"
        ) from err
    made: Any = from_url
    return made(f"{scheme}://{bucket}", retry_config=dict(_RETRIES))


class _Written(io.BytesIO):
    """The content of an object that is written as the file is closed; not after an error."""

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self._path = path

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            super().close()
        self.close()

    def close(self) -> None:
        if not self.closed:
            self._path.write_bytes(self.getvalue())
        super().close()


def _obstore() -> Any:
    import obstore

    return obstore


def _exceptions() -> Any:
    from obstore import exceptions

    return exceptions


def _version(meta: Mapping[str, Any]) -> Version:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}


@contextmanager
def _errors(path: ObjectPath) -> Iterator[None]:
    """Raises OSError in place of obstore's errors, as a disk does."""
    try:
        yield
    except FileNotFoundError as err:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from err
    except _exceptions().BaseError as err:
        raise _os_error(path, err) from err


def _os_error(path: ObjectPath, err: Exception) -> OSError:
    exceptions, answer = _exceptions(), " ".join(str(err).split())
    for noise in _NOISE:
        answer = noise.sub("", answer)
    answer = answer[:_LONGEST]
    if isinstance(err, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "no such bucket", str(path))
    if isinstance(err, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return PermissionError(errno.EACCES, f"the store denies it: {answer}", str(path))
    return OSError(errno.EIO, f"the store fails: {answer}", str(path))
