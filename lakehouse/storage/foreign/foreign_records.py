"""The records of files of others, from a number to a number, as a topic would hand them out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from lakehouse.declare.inputs.sources import DeltaSource, FilesSource, FolderSource, IcebergSource
from lakehouse.errors import SourceError
from lakehouse.storage.foreign import foreign_files, foreign_log
from lakehouse.storage.foreign.file_register import Register, Registered
from lakehouse.storage.foreign.foreign_files import Away, Lines, Rows, Seen, gone, seen
from lakehouse.storage.foreign.iceberg_rows import IcebergRows
from lakehouse.storage.foreign.iceberg_tables import IcebergTable

PARTITION = "0"
"""The only partition of a folder or a table: its files are read one after another."""
RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
_AT_ONCE = 64 << 20  # bytes of records that are held


class Opened(Protocol):
    """A file that is read from its beginning on."""

    def take(self, most: int, size: int) -> tuple[Sequence[int], Sequence[bytes] | pa.Table | None]:
        """The next records, each with its line or row: at most so many, and of about so many bytes."""

    def close(self) -> None: ...


class RecordReader:
    """Reads on where it was, if that is where the next records are: a long file is opened once for many steps."""

    def __init__(self, source: FilesSource, register: Register) -> None:
        self._source, self._register = source, register
        self._folder = Path(source.address)
        self._iceberg = IcebergTable(source) if isinstance(source, IcebergSource) else None
        self._open: Opened | None = None
        self._of: Registered | None = None  # the file that is open
        self._stamp: Seen | None = None  # as it was when it was last compared
        self._next = 0  # the number of the record that comes next

    def read(self, begin: int, end: int, size: int = _AT_ONCE) -> pa.Table:
        """The records from one number on, before another: fewer, if they are more bytes than `size`, or of other columns.

        Those of rows have `row`, a struct, in place of `value` (`decode.row_records`). Raises SourceError.
        """
        pieces: list[pa.Table] = []
        while begin < end and size > 0:
            file = self._register.of_record(begin)
            opened = self._at(file, begin)
            places, taken = opened.take(min(end, file.end) - begin, size)
            if taken is None or not len(taken):
                raise self._short(file)
            piece = self._records(file, begin, places, taken)
            if pieces and piece.schema != pieces[0].schema:
                self.close()  # they are read again by the next step
                break
            pieces.append(piece)
            begin = self._next = begin + piece.num_rows
            size -= piece.nbytes
            if begin == file.end:
                self.close()
        return pa.concat_tables(pieces) if pieces else RECORDS.empty_table()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open = self._of = None

    def _at(self, known: Registered, number: int) -> Opened:
        """The file, at that record."""
        stamp = None
        if isinstance(self._source, FolderSource):
            stamp = seen(self._folder, known.path)
        if self._open is None or self._of != known or self._next != number or stamp != self._stamp:
            self.close()
            self._open, self._of, self._stamp = self._opened(known), known, stamp
            passed = known.first
            while passed < number:
                places, _ = self._open.take(number - passed, _AT_ONCE)
                if not places:
                    raise self._short(known)
                passed += len(places)
        return self._open

    def _opened(self, known: Registered) -> Opened:
        if self._iceberg is not None:
            assert self._register.shape is not None, "it was noted before the first file"
            try:
                with self._iceberg.asking():
                    return IcebergRows(self._iceberg, known, self._register.shape)
            except Away as err:
                if isinstance(err.__cause__, FileNotFoundError):
                    raise gone(self._folder, known, self._register.table) from err
                raise
        if isinstance(self._source, DeltaSource):
            path = foreign_log.location(self._folder, known.path)
            try:
                partitioned = bool(known.values)
                types = foreign_log.partition_types(self._folder) if partitioned else pa.schema([])
                return Rows(path, self._folder, known, types, foreign_log.own_columns(known))
            except FileNotFoundError as err:
                raise gone(self._folder, known, self._register.table) from err
        foreign_files.check(self._folder, known, self._register.table)
        path = self._folder / known.path
        if self._source.of_rows:
            return Rows(path, self._folder, known, pa.schema([]))
        return Lines(path, known, self._source.max_bytes)

    def _short(self, known: Registered) -> SourceError:
        return SourceError(
            f"table={self._register.table}, path={self._folder}, file={known.path}: {known.count:,} of its records are "
            "registered, and it has fewer, though it looks the same; put that file back"
        )

    def _records(
        self,
        known: Registered,
        begin: int,
        places: Sequence[int],
        taken: Sequence[bytes] | pa.Table,
    ) -> pa.Table:
        many = len(places)
        columns = {
            "key": pa.array(
                [f"{known.path}:{place}".encode(errors="surrogateescape") for place in places],
                pa.binary(),
            ),
            "partition": pa.repeat(pa.scalar(int(PARTITION), pa.int32()), many),
            "offset": pa.array(range(begin, begin + many), pa.int64()),
            "timestamp": pa.repeat(
                pa.scalar(known.modified // 1000, pa.timestamp("us", "UTC")), many
            ),
        }
        if isinstance(taken, pa.Table):
            # in one piece, since a struct is made of such
            row = taken.combine_chunks().to_struct_array().combine_chunks()
            return pa.table(columns | {"row": row})
        return pa.table(columns | {"value": pa.array(taken, pa.binary())}).select(RECORDS.names)


def lost(source: FilesSource, register: Register, read: int) -> list[tuple[int, int]]:
    """The ranges of records that are registered, not read, and not to be had any more."""
    folder = Path(source.address)
    iceberg = IcebergTable(source) if isinstance(source, IcebergSource) else None
    ranges: list[tuple[int, int]] = []
    for file in register.from_record(read):
        begin = max(file.first, read)
        if begin >= file.end:
            continue
        if isinstance(source, DeltaSource):
            exists = foreign_log.location(folder, file.path).exists()
        elif iceberg is not None:
            exists = iceberg.has(file.path)
        else:
            try:
                foreign_files.check(folder, file, register.table)
                exists = True
            except SourceError:
                exists = False
        if exists:
            continue
        if ranges and ranges[-1][1] == begin:
            begin = ranges.pop()[0]
        ranges.append((begin, file.end))
    return ranges
