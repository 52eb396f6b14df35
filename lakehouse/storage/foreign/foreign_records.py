"""The records of files of others, from a number to a number, as a topic would hand them out."""

from collections.abc import Sequence

import pyarrow as pa

from lakehouse.errors import SourceError
from lakehouse.storage.foreign.file_register import Registered
from lakehouse.storage.foreign.foreign_contract import ForeignFiles, Opened
from lakehouse.storage.foreign.foreign_files import Seen

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


class RecordReader:
    """Reads on where it was, if that is where the next records are: a long file is opened once for many steps."""

    def __init__(self, files: ForeignFiles) -> None:
        self._files, self._register = files, files.register
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
            assert file is not None, "its records are read once it is registered"
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
        stamp = self._files.stamp(known)
        if self._open is None or self._of != known or self._next != number or stamp != self._stamp:
            self.close()
            self._open, self._of, self._stamp = self._files.open(known), known, stamp
            passed = known.first
            while passed < number:
                places, _ = self._open.take(number - passed, _AT_ONCE)
                if not places:
                    raise self._short(known)
                passed += len(places)
        return self._open

    def _short(self, known: Registered) -> SourceError:
        return SourceError(
            f"table={self._register.table}, path={self._files.path}, file={known.path}: {known.count:,} of its records are "
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
