"""The places of a table's rows by the values of some columns: for each data file the rows' hashes of these, in order.

The index takes 16 bytes of memory a row for each set of columns, and is made as files are first asked for. A hash says
where to look. The caller compares the rows found with the values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from lakehouse.storage.delta import deletion_vectors
from lakehouse.storage.delta.arrow import rows_at
from lakehouse.storage.disk.objects import source

_MIX = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0xD1B54A32D192ED03)


def can_index(types: Iterable[pa.DataType]) -> bool:
    """Returns True if values of these types have one hash: a float may be no number, and a struct is several values."""
    return not any(pa.types.is_floating(each) or pa.types.is_nested(each) for each in types)


@dataclass(frozen=True, slots=True)
class Truncated:
    """The day, hour or other unit in which an instant of a column lies."""

    column: str
    unit: str  # of Spark's date_trunc; "date" for the day as a date

    def of(self, instants: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns the instants truncated as Spark does it, in UTC."""
        if self.unit == "date":
            return pc.floor_temporal(instants, unit="day").cast(pa.date32())
        return pc.floor_temporal(instants, unit=self.unit)


Value = str | Truncated
"""The value by which rows are found: a column as it is, or truncated."""


def column_of(value: Value) -> str:
    return value if isinstance(value, str) else value.column


@dataclass(frozen=True, slots=True)
class _File:
    """The hashes of a file's rows in order, and the place of each."""

    hashes: np.ndarray
    places: np.ndarray

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """Returns the places of the rows that have one of the `wanted` hashes."""
        first = np.searchsorted(self.hashes, wanted, "left")
        last = np.searchsorted(self.hashes, wanted, "right")
        parts = [self.places[a:b] for a, b in zip(first, last, strict=True) if b > a]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class RowIndex:
    """The rows of a table by the values of some columns, or of any of several sets of columns (`uses`)."""

    def __init__(self, uses: Sequence[Sequence[Value]]) -> None:
        self.uses = [list(values) for values in uses]
        self._files: dict[Path, list[_File]] = {}

    def rows_of(self, files: Mapping[Path, BitMap], wanted: pa.Table, most: int) -> pa.Table | None:
        """Returns the rows of these files that may have the values of a row of `wanted`, whose columns are those of each use.

        None if they are more than `most`. Files that are not named are forgotten. `files`: each with the places of its
        deleted rows.
        """
        hashes = np.unique(_hashes(wanted))
        self._files = {file: self._known(file, wanted.schema) for file in files}
        places_of = {}
        for file, indices in self._files.items():
            places = np.unique(np.concatenate([each.find(hashes) for each in indices]))
            if dead := files[file]:
                places = deletion_vectors.places(deletion_vectors.marks(places) - dead)
            if len(places):
                places_of[file] = places
        if sum(map(len, places_of.values())) > most:
            return None
        rows = [rows_at(pq.ParquetFile(source(file)), places) for file, places in places_of.items()]
        return pa.concat_tables(rows, promote_options="permissive") if rows else pa.table({})

    def _known(self, file: Path, schema: pa.Schema) -> list[_File]:
        if (cached := self._files.get(file)) is not None:
            return cached
        columns = {column_of(value) for use in self.uses for value in use}
        stored = pq.ParquetFile(source(file)).read(columns=list(columns))
        indices = []
        for use in self.uses:
            values = [
                stored[value] if isinstance(value, str) else value.of(stored[value.column])
                for value in use
            ]
            hashes = _hashes(pa.table(values, names=schema.names).cast(schema))
            order = np.argsort(hashes, kind="stable")
            indices.append(_File(hashes[order], order))
        return indices


def _hashes(rows: pa.Table) -> np.ndarray:
    hashes = np.zeros(rows.num_rows, np.uint64)
    with np.errstate(over="ignore"):
        for column in rows.columns:
            hashes = (hashes ^ (hashes >> np.uint64(31))) * _MIX + _of_values(column)
    return hashes


def _of_values(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a hash of each value: the same in this process for the same value."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int64() if column.type.bit_width == 64 else pa.int32())
    if pa.types.is_integer(column.type):
        numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy().astype(np.uint64) * _MIX
        return np.where(column.is_null().to_numpy(), _NULL, numbers)
    parts = [np.empty(0, np.uint64)]
    for chunk in column.dictionary_encode().chunks:
        values = chunk.dictionary.to_pylist()
        hashes = np.array([hash(value) & 0xFFFFFFFFFFFFFFFF for value in values], np.uint64)
        places = pc.fill_null(chunk.indices, len(values)).to_numpy(zero_copy_only=False)
        parts.append(np.append(hashes * _MIX, _NULL)[places])
    return np.concatenate(parts)
