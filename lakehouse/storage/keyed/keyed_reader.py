"""A keyed table as another table reads it, version by version: the rows of some keys, and the rows that came and went.

Both are at a version that the reader chose, however far the table is by then. The index of that
version is kept (`key_index`), so that only changes are read.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lakehouse.storage.delta import deletion_vectors
from lakehouse.storage.keyed import key_index
from lakehouse.storage.keyed.key_index import File, Index


class KeyedReader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._index: Index | None = None

    def move(self, version: int) -> None:
        """Moves to that version. Raises CommitError if the log does not have it any more."""
        if self._index is None or self._index.state.version != version:
            self._index = key_index.read(self.path, version, self._index)

    def changed(self, version: int) -> tuple[pa.Table, pa.Table]:
        """Moves to a later version, and returns the rows that went on the way and those that came, in no order.

        Rows that were only moved to another file may be in both.
        """
        assert self._index is not None, "it has been moved to the version before"
        before = self._index.files
        self.move(version)
        names = before.keys() | self._index.files.keys()
        pairs = [(before.get(name), self._index.files.get(name)) for name in names]
        return (
            _joined([part for one, other in pairs for part in _only(one, other)]),
            _joined([part for one, other in pairs for part in _only(other, one)]),
        )

    def files(self) -> dict[Path, BitMap]:
        """Returns the data files, each with the places of its deleted rows."""
        assert self._index is not None, "it has been moved to a version"
        found = self._index.files.values()
        return {each.file: each.dead for each in found}

    def rows_of(self, keys: pa.ChunkedArray) -> pa.Table | None:
        """Returns the rows of these keys; None if there are none."""
        assert self._index is not None, "it has been moved to a version"
        return self._index.rows_of(keys)


def _joined(parts: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})


def _only(here: File | None, there: File | None) -> Iterator[pa.Table]:
    """Yields the rows of a file that live here and not there."""
    if here and there:
        died = there.dead - here.dead
        if died:
            yield here.rows(deletion_vectors.places(died))
    elif here:
        yield here.live(np.empty(0, np.intp))
