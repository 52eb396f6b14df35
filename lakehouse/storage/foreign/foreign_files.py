"""Files of others, which an ingest table reads: what a folder has, what a file holds, and its records one after another.

Nothing here writes where the files are.
"""

import csv
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

from lakehouse.errors import SourceError
from lakehouse.storage.delta import deletion_vectors
from lakehouse.storage.delta.arrow import plain, plain_types
from lakehouse.storage.disk import files
from lakehouse.storage.foreign.file_register import Registered

_HIDDEN = (".", "_")
_NOT_YET = (".tmp", ".part")  # at the end of names under which files are being written
_UNITS = (
    1,
    100,
    1_000,
    1_000_000,
    1_000_000_000,
    2_000_000_000,
)  # nanoseconds: disks cut off what is smaller
_BATCH = 8_192  # rows of Parquet that are read at once
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it lies in a folder."""

    path: str  # in the folder
    size: int
    modified: int  # nanoseconds since 1970


class Away(SourceError):
    """A folder, or a table of others, is not there."""


class Gone(SourceError):
    """A file was removed before it was read."""


class Unfit(Exception):
    """A file cannot be read as it is now; the text says why."""


def listed(folder: Path, pattern: str) -> list[Seen]:
    """The files of a folder and of those below it that may be whole. Raises Away."""
    if not files.readable(folder):
        raise away(folder)
    listing: list[Seen] = []
    for below, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        for name in names:
            if not name.startswith(_HIDDEN) and not name.endswith(_NOT_YET):
                listing += _seen(folder, Path(below, name)) if fnmatchcase(name, pattern) else []
    return listing


def _raise(err: OSError) -> None:
    if not isinstance(err, FileNotFoundError):  # one that was there a moment ago
        raise away(Path(err.filename)) from err


def away(path: Path) -> Away:
    """That a folder, or a table, cannot be looked at."""
    return Away(
        f"path={path}: it must be there and be readable, and is not; check the path, and that its disk is mounted"
    )


def seen(folder: Path, path: str) -> Seen | None:
    """The file of that path as it lies there now; None if there is none."""
    return next(iter(_seen(folder, folder / path)), None)


def _seen(folder: Path, path: Path) -> list[Seen]:
    try:
        stat = path.stat()
    except FileNotFoundError:  # moved or removed meanwhile
        return []
    # of an empty one nothing can be read, and its content may be yet to come
    if not stat.st_size or not S_ISREG(stat.st_mode):
        return []
    return [Seen(str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns)]


def is_same_time(one: int, other: int) -> bool:
    """Returns True if two modification times are the same, as far as the coarser disk has kept them."""
    first, last = sorted((one, other))
    return any(last - last % unit == first for unit in _UNITS)


def registered(folder: Path, found: Seen, columns: Sequence[str] | None, rows: bool) -> Registered:
    """The file with the number of its records, read once from its beginning to its end.

    `columns`: what its header line names, if it has one; `rows`: whether it is Parquet. Raises Unfit, FileNotFoundError.
    """
    path = folder / found.path
    if rows:
        digest, count = files.digest_of(path), _rows_in(path)
    else:
        with path.open("rb") as file:
            tee = _Hashing(file)
            count = 0
            try:
                for number, line in _lines(_unpacked(path, io.BufferedReader(tee)), _BLOCK):
                    if number == 1 and columns is not None:
                        _check_header(line, columns)
                        continue
                    count += bool(line)
            except (EOFError, zlib.error, gzip.BadGzipFile) as err:
                raise Unfit(f"it is not whole, or no file of gzip ({err})") from err
            digest = tee.digest()
    return Registered(
        found.path, found.size, found.modified, count, digest=digest, header=columns is not None
    )


class Lines:
    """The records of a file of lines, from its beginning on."""

    def __init__(self, path: Path, known: Registered, longest: int) -> None:
        self._file = path.open("rb")
        self._lines = _lines(_unpacked(path, self._file), longest)
        if known.header:
            next(self._lines)

    def take(self, most: int, size: int) -> tuple[list[int], list[bytes]]:
        """The next records, at most so many of at most so many bytes in all, but for the last: numbers of lines, and lines."""
        numbers: list[int] = []
        values: list[bytes] = []
        held = 0
        while len(values) < most and held < size:
            number, line = next(self._lines, (0, b""))
            if not number:
                break
            if line:
                numbers.append(number)
                values.append(line)
                held += len(line)
        return numbers, values

    def close(self) -> None:
        self._file.close()


class Rows:
    """The rows of a file of Parquet, from its beginning on, without those that are dead; with the values of its partition."""

    _columns: list[str] | None = None  # that are read of the file: all

    def __init__(
        self,
        path: Path,
        table: Path,
        known: Registered,
        types: pa.Schema,
        own: Mapping[str, pa.Scalar | None] = MappingProxyType({}),
    ) -> None:
        self._file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
        self._dead = np.empty(0, np.uint32)
        if known.vector:
            self._dead = deletion_vectors.places(deletion_vectors.read(table, known.vector))
        self._values: dict[str, pa.Scalar | None] = {
            name: _value(known.values[name], types, name) for name in known.values
        }
        self._values |= own
        self._pieces = self._read()
        self._held: tuple[np.ndarray, pa.Table] | None = None

    def take(self, most: int, size: int) -> tuple[list[int], pa.Table | None]:
        """The next rows, as `Lines.take`: their places in the file from 1 on, and the rows."""
        numbers: list[np.ndarray] = []
        tables: list[pa.Table] = []
        held = 0
        while most > 0 and held < size:
            piece = self._held or next(self._pieces, None)
            if piece is None:
                break
            places, rows = piece
            now = min(most, len(places))
            self._held = (places[now:], rows.slice(now)) if now < len(places) else None
            numbers.append(places[:now] + 1)
            tables.append(rows.slice(0, now))
            most, held = most - now, held + tables[-1].nbytes
        if not tables:
            return [], None
        return np.concatenate(numbers).tolist(), pa.concat_tables(tables)

    def close(self) -> None:
        self._file.close()

    def _read(self) -> Iterator[tuple[np.ndarray, pa.Table]]:
        start = 0
        for batch in self._file.iter_batches(_BATCH, columns=self._columns):
            places = np.arange(start, start + batch.num_rows)
            start += batch.num_rows
            living = ~np.isin(places, self._dead)
            if not living.any():
                continue
            yield places[living], self._shaped(batch).filter(pa.array(living))

    def _shaped(self, batch: pa.RecordBatch) -> pa.Table:
        """The rows with the columns of the table."""
        rows = plain(pa.Table.from_batches([batch]))
        for name, value in self._values.items():
            if name in rows.column_names:  # a writer may put it into the file, too
                rows = rows.drop_columns([name])
            if value is not None:
                rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return rows


def _value(text: str | None, types: pa.Schema, name: str) -> pa.Scalar:
    """A value of a partition, as a Delta log writes it, of the type of its column."""
    kind = types.field(name).type
    if text is None:
        return pa.scalar(None, kind)
    if pa.types.is_timestamp(kind):
        at = np.datetime64(text.removesuffix("Z").replace(" ", "T"), "us")
        return pa.scalar(at.astype("int64"), pa.int64()).cast(kind)
    if pa.types.is_binary(kind):
        return pa.scalar(text.encode(), kind)
    return pa.scalar(text).cast(kind)


def _rows_in(path: Path) -> int:
    try:
        with pq.ParquetFile(path) as file:
            from_arrow_schema(plain_types(file.schema_arrow))
            return file.metadata.num_rows
    except (pa.ArrowInvalid, PySparkException, OSError) as err:
        if isinstance(err, FileNotFoundError):
            raise
        raise Unfit(
            f"it is not whole, or no file of Parquet with types of Spark's ({err})"
        ) from err


def _check_header(line: bytes, columns: Sequence[str]) -> None:
    text = line.removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
    named = next(csv.reader([text]), [])
    if [name.strip().lower() for name in named] != [name.lower() for name in columns]:
        raise Unfit(
            f"its first line is {text[:200]!r}, and a header line names the columns of the schema in their order, "
            f"{','.join(columns)!r}"
        )


def _lines(stream: IO[bytes], longest: int) -> Iterator[tuple[int, bytes]]:
    """Number and content of each line, without its end; of one that is longer than `longest` a byte more than that."""
    number = 0
    while line := stream.readline(longest + 3):  # with its end
        number += 1
        rest = line
        while not rest.endswith(b"\n") and (rest := stream.readline(_BLOCK)):
            pass
        line = line.rstrip(b"\r\n")[: longest + 1]
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _unpacked(path: Path, file: IO[bytes]) -> IO[bytes]:
    if path.name.endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(fileobj=file))
    return file


class _Hashing(io.RawIOBase):
    """A file that is digested as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._seen = file, files.digester()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data = self._file.read(len(buffer))
        self._seen.update(data)
        buffer[: len(data)] = data
        return len(data)

    def digest(self) -> str:
        """Returns the digest of the file's whole content."""
        while data := self._file.read(_BLOCK):
            self._seen.update(data)
        return self._seen.hexdigest()


def check(folder: Path, known: Registered, table: str) -> None:
    """That a file still holds what was registered. Raises SourceError."""
    on_disk = seen(folder, known.path)
    if on_disk is None:
        raise gone(folder, known, table)
    same = on_disk.size == known.size
    if known.digest and same:
        same = files.digest_of(folder / known.path) == known.digest
    if not same:
        raise SourceError(
            f"table={table}, file={folder / known.path}: it is not what it was when its records were numbered ({known.size:,} "
            f"bytes then, {on_disk.size:,} now), and not all of them are read; put that file back, or accept by `lakehouse topic "
            f"accept-gap {table}` that they are lost, and the file counts as a new one"
        )


def gone(folder: Path, known: Registered, table: str) -> Gone:
    """That a file was removed before it was read."""
    where = known.path if "://" in known.path else folder / known.path
    return Gone(
        f"table={table}, file={where}, records={known.first} to {known.end - 1}: it is gone before it was read; "
        f"put it back, or accept by `lakehouse topic accept-gap {table}` that they are lost"
    )
