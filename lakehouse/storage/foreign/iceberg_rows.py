"""The rows of a data file of an Iceberg table: its columns found by their field ids, without the rows that are deleted."""

import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.storage.delta.arrow import plain
from lakehouse.storage.foreign.file_register import Registered
from lakehouse.storage.foreign.foreign_files import Rows
from lakehouse.storage.foreign.iceberg_columns import columns_of
from lakehouse.storage.foreign.iceberg_tables import IcebergTable, dead_rows


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
