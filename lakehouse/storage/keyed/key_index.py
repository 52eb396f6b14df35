"""The places of the rows of each key: for every data file of a keyed table its keys in order, and its dead rows.

In memory are 16 bytes for the key of each row, and the deletion vectors. The keys are read from the
column `_key` alone when the job starts, and follow each commit of this process. If another process
has committed, what changed is read again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from lakehouse.storage.delta import deletion_vectors, delta_log, log_state
from lakehouse.storage.delta.arrow import plain, rows_at
from lakehouse.storage.delta.log_state import LogState
from lakehouse.storage.delta.row_keys import KEY
from lakehouse.storage.disk.objects import source

_BYTES = 16


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys as two numbers each, sorted by them.

    `order`: their places in the column that they come from, None if that is sorted.
    """

    high: np.ndarray
    low: np.ndarray
    order: np.ndarray | None = None
    missing: bool = False  # True if rows have no key, because others have written them

    def __len__(self) -> int:
        return len(self.high)

    def places(self, wanted: "Keys") -> np.ndarray:
        """Returns the places, in order, at which any of the `wanted` keys is."""
        first = np.searchsorted(self.high, wanted.high, "left")
        counts = np.searchsorted(self.high, wanted.high, "right") - first
        hit = np.flatnonzero(counts)
        first, counts = first[hit], counts[hit]
        ends = np.cumsum(counts)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - ends + counts, counts)
        places = places[self.low[places] == np.repeat(wanted.low[hit], counts)]
        places = np.unique(places)
        return places if self.order is None else np.sort(self.order[places])


def keys_of(column: pa.ChunkedArray | pa.Array) -> Keys:
    """Returns the keys of a column `_key`, sorted."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    missing = whole.null_count > 0
    if missing:
        whole = whole.fill_null(bytes(_BYTES))
    fixed = whole.cast(pa.binary(_BYTES))
    start = fixed.offset * _BYTES
    words = np.frombuffer(
        fixed.buffers()[1] or b"", dtype=">u8", count=2 * len(fixed), offset=start
    ).reshape(-1, 2)
    high, low = words[:, 0].astype(np.uint64), words[:, 1].astype(np.uint64)
    rising = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] >= low[:-1]))
    if rising.all():
        return Keys(high, low, None, missing)
    order = np.lexsort((low, high))
    return Keys(high[order], low[order], order, missing)


@dataclass
class File:
    """A data file of the table, as the log names it, with its keys and its dead rows."""

    path: Path  # of the table
    named: dict
    keys: Keys
    dead: BitMap

    @property
    def name(self) -> str:
        return self.named["path"]

    @property
    def vector(self) -> dict | None:
        return self.named.get("deletionVector")

    @property
    def dead_rows(self) -> int:
        return self.vector["cardinality"] if self.vector else 0

    @property
    def live_rows(self) -> int:
        return len(self.keys) - self.dead_rows

    @property
    def file(self) -> Path:
        return delta_log.data_file(self.path, self.named)

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        return pq.read_metadata(source(self.file))

    def find(self, wanted: Keys) -> np.ndarray:
        """Returns the places, in order, of the living rows of these keys."""
        places = self.keys.places(wanted)
        if not len(places) or not self.dead:
            return places
        return deletion_vectors.places(deletion_vectors.marks(places) - self.dead)

    def live(self, without: np.ndarray) -> pa.Table:
        """Returns the living rows, without those at these places."""
        stored = plain(pq.read_table(source(self.file), partitioning=None))
        return deletion_vectors.living(stored, self.dead | deletion_vectors.marks(without))

    def rows(self, places: np.ndarray) -> pa.Table:
        """Returns the rows at these places; only the row groups that have one are read."""
        return rows_at(pq.ParquetFile(source(self.file), metadata=self.metadata), places)


@dataclass
class Index:
    """The files of one table at the newest version that this process has seen."""

    state: LogState
    files: dict[str, File] = field(default_factory=dict)

    def __iter__(self) -> Iterator[File]:
        return iter(self.files.values())

    @property
    def complete(self) -> bool:
        """Returns True if every row has its key."""
        return not any(file.keys.missing for file in self)

    def found(self, wanted: Keys) -> dict[str, np.ndarray]:
        """Returns, for each file that has living rows of these keys, their places in order."""
        by_file = ((file.name, file.find(wanted)) for file in self)
        return {name: places for name, places in by_file if len(places)}

    def rows_of(self, keys: pa.ChunkedArray) -> pa.Table | None:
        """Returns the rows of these keys, in no order; None if there are none."""
        by_file = self.found(keys_of(keys)).items()
        parts = [self.files[name].rows(places) for name, places in by_file]
        return pa.concat_tables(parts, promote_options="permissive") if parts else None

    def renew(self) -> None:
        """Follows the log. Files that are known are not read again."""
        self.state, changed = log_state.renewed(self.state)
        if changed:
            self.files = {name: self._file(named) for name, named in self.state.files.items()}

    def _file(self, named: Mapping) -> File:
        cached = self.files.get(named["path"])
        same = deletion_vectors.identity(named.get("deletionVector"))
        if cached and deletion_vectors.identity(cached.vector) == same:
            cached.named = dict(named)
            return cached
        return _read(self.state.path, named, cached)


def read(path: Path, version: int | None = None, known: Index | None = None) -> Index:
    """Returns the index of the table as it is now, or was at a version. Files of a `known` index are not read again."""
    state = log_state.newest(path) if version is None else log_state.at(path, version)
    index = Index(state, dict(known.files) if known else {})
    index.files = {name: index._file(named) for name, named in index.state.files.items()}
    return index


def _read(path: Path, named: Mapping, known: File | None) -> File:
    if known:
        keys = known.keys
    else:
        stored = pq.ParquetFile(source(delta_log.data_file(path, named)))
        if KEY in stored.schema_arrow.names:
            keys = keys_of(stored.read(columns=[KEY])[KEY])
        else:  # a file by an earlier version of the library, without keys
            nothing = np.zeros(stored.metadata.num_rows, np.uint64)
            keys = Keys(nothing, nothing, None, True)
    return File(path, dict(named), keys, deletion_vectors.dead_of(path, named))
