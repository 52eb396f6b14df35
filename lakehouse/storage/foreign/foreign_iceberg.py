"""An Iceberg table of others as an ingest table follows it: first the files that it has, then those that each snapshot adds."""

import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.declare.inputs.iceberg import IcebergSource
from lakehouse.errors import SourceError
from lakehouse.storage.delta.arrow import plain
from lakehouse.storage.foreign import iceberg_columns, iceberg_tables
from lakehouse.storage.foreign.file_register import Register, Registered
from lakehouse.storage.foreign.foreign_contract import ForeignFiles, IsLost, Opened
from lakehouse.storage.foreign.foreign_files import Away, Rows, gone
from lakehouse.storage.foreign.iceberg_columns import columns_of
from lakehouse.storage.foreign.iceberg_tables import EMPTY, IcebergTable, dead_rows


class IcebergFiles(ForeignFiles):
    """The files of an Iceberg table of others."""

    def __init__(self, source: IcebergSource, register: Register) -> None:
        super().__init__(source.address, register)
        self._source, self._table = source, IcebergTable(source)
        self._through = register.through  # the last snapshot that was looked at
        self._sequence = register.sequence  # the number of that commit
        self._first = ""  # of the snapshots after what was read that add or remove rows
        self._many = 0  # of those

    def feed(
        self, is_lost: IsLost, types: Mapping[str, str] = MappingProxyType({})
    ) -> "IcebergFeed":
        return IcebergFeed(self._source, self.register, types)

    def open(self, known: Registered) -> Opened:
        assert self.register.shape is not None, "it was noted before the first file"
        try:
            with self._table.asking():
                return IcebergRows(self._table, known, self.register.shape)
        except Away as err:
            if isinstance(err.__cause__, FileNotFoundError):
                raise gone(self.path, known, self.register.table) from err
            raise

    def has(self, known: Registered) -> bool:
        return self._table.has(known.path)

    def passed_over(self) -> int | None:
        if self.register.through < 0:
            return None
        table = IcebergTable(self._source)
        with table.asking():
            found = table.load()
            ahead = iceberg_tables.ahead(found, self.register.through, self.register.sequence)
            if ahead.broken:
                return ahead.passing
            for snapshot in ahead.snapshots[:1]:
                if iceberg_tables.added_by(found, snapshot)[1]:
                    return snapshot.snapshot_id
        return None

    def passing(self, last: int) -> str:
        return f"snapshots up to {last}"

    def changed(self) -> tuple[str, int]:
        with self._table.asking():
            table = self._table.load()
            ahead = iceberg_tables.ahead(table, self._through, self._sequence)
            said = [f"{iceberg_tables.newest(table)} ({ahead.broken})"] if ahead.broken else []
            for snapshot in ahead.snapshots if not ahead.broken else ():
                added, operation = iceberg_tables.added_by(table, snapshot)
                if added or operation:
                    said.append(f"{snapshot.snapshot_id} ({operation or 'rows were added'})")
            self._through = iceberg_tables.newest(table)
            self._sequence = iceberg_tables.sequence_of(table)
        if said:
            self._first = self._first or f"snapshot {said[0]}"
            self._many += len(said)
        return self._first, self._many


class IcebergFeed:
    """Follows the table (`foreign_contract.Feed`)."""

    refused: list[str] = []
    remarks: list[str] = []

    def __init__(self, source: IcebergSource, register: Register, types: Mapping[str, str]) -> None:
        self.register = register
        self._source, self._types = source, types
        self._table = IcebergTable(source)
        # snapshots and how many records there are with them: the last that is read, what follows, and the one asked for
        self._ends = [(register.through, register.end)]
        self._present = EMPTY
        self._is_shaped = False

    def present(self) -> int:
        self._present = iceberg_tables.newest(self._table.load())
        return self._present

    def has_read(self, present: int, read: int) -> bool:
        ends = list(self._ends)
        place = next((i for i, (snapshot, _) in enumerate(ends) if snapshot == present), len(ends))
        return any(end <= read for _, end in ends[place:])

    def look(self, read: int, most: int) -> None:
        last = sum(end <= read for _, end in self._ends) - 1
        ends = enumerate(self._ends)
        self._ends = [each for n, each in ends if n >= last or each[0] == self._present]
        with self._table.asking():
            self._look(read, most)
        # no snapshot adds a file again
        self.register.forget(read, lambda file: file.identity not in self.register.since)

    def _look(self, read: int, most: int) -> None:
        table, register = self._table.load(), self.register
        if register.shape:
            iceberg_columns.check_same(table, self._source.address, register.shape)
        if register.through < 0:
            self._shape(table)
            files = iceberg_tables.present_files(table)
            self._add(files, iceberg_tables.newest(table), iceberg_tables.sequence_of(table))
        ahead = iceberg_tables.ahead(table, register.through, register.sequence)
        waits = read < register.end  # what comes before a fault is read first
        if ahead.broken:
            if waits:
                return
            raise SourceError(f"{self._where()}: {ahead.broken}; {self._remedy()}")
        if ahead.snapshots or not self._is_shaped:
            try:
                self._shape(table)
            except SourceError:
                if waits:
                    return
                raise
        for snapshot in ahead.snapshots:
            if register.end - read >= most:
                return
            added, operation = iceberg_tables.added_by(table, snapshot)
            if operation and read < register.end:
                return
            if operation:
                raise SourceError(
                    f"{self._where()}, snapshot={snapshot.snapshot_id}, operation={operation}: it removes or changes rows, and "
                    f"an ingest table keeps the rows that it has read; {self._remedy()}"
                )
            self._add(added, snapshot.snapshot_id, snapshot.sequence_number)

    def _shape(self, table) -> None:
        whole = self._source.unknown_fields == "quarantine"
        before = self.register.shape
        self.register.take_shape(
            iceberg_columns.shape(table, self._source.address, self._types, before, whole)
        )
        self._is_shaped = True

    def _add(self, files: list[Registered], snapshot: int, sequence: int | None) -> None:
        self.register.add(files, snapshot, sequence)
        self._ends.append((snapshot, self.register.end))

    def _where(self) -> str:
        return f"table={self.register.table}, iceberg_table={self._source.address}"

    def _remedy(self) -> str:
        return (
            f"`lakehouse topic accept-gap {self.register.table}` passes over it, and goes on behind it, or read the table by an "
            "ingest table of another name, which begins with the rows of now; of snapshots that are expired, have its owner keep "
            "them for longer"
        )


class IcebergRows(Rows):
    """The rows of a file from its beginning on, with the columns of a shape (`iceberg_columns.shape`)."""

    def __init__(self, table: IcebergTable, known: Registered, shape: Mapping[str, Any]) -> None:
        from pyiceberg.conversions import from_json
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.schema import prune_columns
        from pyiceberg.table.name_mapping import parse_mapping_from_json
        from pyiceberg.types import ListType, MapType

        io = table.io()
        self._stream = io.new_input(known.path).open()
        self._dead = dead_rows(io, known)
        self._file = pq.ParquetFile(self._stream, coerce_int96_timestamp_unit="us")
        self._wanted = columns_of(shape)
        there = pyarrow_to_schema(
            self._file.schema_arrow,
            parse_mapping_from_json(shape["mapping"]) if shape["mapping"] else None,
            downcast_ns_timestamp_to_us=True,
            format_version=shape["version"],
        )
        # a list and a map come with what is in them
        numbers = {
            number
            for number in self._wanted.field_ids
            if not isinstance(self._wanted.find_type(number), ListType | MapType)
        }
        self._there = prune_columns(there, numbers, select_full_types=False)
        self._columns = [each.name for each in self._there.columns]
        self._of_partition = {
            number: from_json(self._wanted.find_type(number), known.values[str(number)])
            for number in self._wanted.field_ids - there.field_ids
            if known.values.get(str(number)) is not None
        }
        self._pieces = self._read()
        self._held = None

    def _shaped(self, batch: pa.RecordBatch) -> pa.Table:
        from pyiceberg.io.pyarrow import _to_requested_schema

        shaped = _to_requested_schema(
            self._wanted,
            self._there,
            batch,
            downcast_ns_timestamp_to_us=True,
            projected_missing_fields=self._of_partition,
            allow_timestamp_tz_mismatch=True,
        )
        columns = {each.name: _of_spark(shaped.column(each.name)) for each in shaped.schema}
        return plain(pa.table(columns))

    def close(self) -> None:
        super().close()
        self._stream.close()


def _of_spark(column: pa.Array) -> pa.Array:
    """A column with a type of Spark's: an id as text, and bytes of a fixed number as any bytes."""
    if isinstance(column.type, pa.UuidType):
        texts = [
            None if each is None else str(uuid.UUID(bytes=each))
            for each in column.storage.to_pylist()
        ]
        return pa.array(texts, pa.string())
    return column.cast(pa.binary()) if pa.types.is_fixed_size_binary(column.type) else column
