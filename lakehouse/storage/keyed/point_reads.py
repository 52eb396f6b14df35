"""The rows of one key of a keyed table at its newest version, without a scan and without a JVM.

The log names the files. Their footers say which row groups may hold the key, and only these are
read. Footers are kept, because a data file never changes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.errors import CommitError, QueryError, RangeError
from lakehouse.storage.delta import deletion_vectors, delta_log, log_state, python_years
from lakehouse.storage.delta.log_state import LogState
from lakehouse.storage.delta.row_keys import KEY, of_text
from lakehouse.storage.delta.table_creation import FOUND_BY
from lakehouse.storage.disk.objects import source

_FILES = 512  # the number of files whose footers are kept
# with `LogState.declared` as it was when the columns were read
_known: dict[Path, tuple[LogState, int, dict[str, str], list[str]]] = {}
_reading = Lock()  # held while a log is read, because threads share its state


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of a key at a version of its table, versions in their order; none if there is no such key."""

    version: int
    rows: list[dict[str, object]]


def get(path: Path, columns: Sequence[str], *values: str | None) -> list[dict[str, object]]:
    """Returns the rows of `find`."""
    return find(path, columns, *values).rows


def find(path: Path, columns: Sequence[str], *values: str | None) -> Found:
    """Returns the rows of the key whose columns have these `values`, as text, None for null. Threads may call it.

    Raises RangeError for a table that is not keyed, for another number of values, or for a value that
    its column cannot have.
    """
    with _reading:
        state, types, by = _state(path)
        version, files = state.version, list(state.files.values())
    if KEY not in types or not columns:
        raise RangeError(
            f"table={path.name}: it has no key, by which a row would be found; only keyed and versioned tables have one; "
            " use `lakehouse query`"
        )
    key = of_text(path.name, {name: types[name] for name in by or columns}, values)
    rows = [
        {name: value for name, value in row.items() if not name.startswith("_")}
        for named in files
        for row in _rows(path, named, key)
    ]
    if types.keys() >= {"valid_from", "valid_to"}:  # the versions of a key, the oldest first
        rows.sort(key=itemgetter("valid_from"))
    return Found(version, rows)


def _state(path: Path) -> tuple[LogState, dict[str, str], list[str]]:
    """Returns the log up to now, the types of the columns, and the columns by which rows are found."""
    before, declared, types, by = _known.get(path, (LogState(path), 0, {}, []))
    state, _ = log_state.renewed(before)
    if state is not before or state.declared != declared:  # of a table that was made again, too
        table = delta_log.open_table(path)
        types = {
            field.name: getattr(field.type, "type", "struct") for field in table.schema().fields
        }
        by = json.loads(table.metadata().configuration.get(FOUND_BY) or "[]")
    _known[path] = state, state.declared, types, by
    return state, types, by


def _rows(path: Path, named: dict, key: bytes) -> list[dict[str, object]]:
    file = delta_log.data_file(path, named)
    metadata, places = _footer(file)
    groups = [n for n, place in enumerate(places) if place is None or place[0] <= key <= place[1]]
    if not groups:
        return []
    stored, rows = pq.ParquetFile(source(file), metadata=metadata), []
    for group in groups:
        inside = np.flatnonzero(
            pc.equal(stored.read_row_group(group, columns=[KEY])[KEY], key).to_numpy(
                zero_copy_only=False
            )
        )
        if len(inside) and (dead := deletion_vectors.dead_of(path, named)):
            begins = sum(metadata.row_group(n).num_rows for n in range(group))
            inside = inside[[begins + int(place) not in dead for place in inside]]
        if len(inside):
            chosen = stored.read_row_group(group).take(inside)
            where = f"table={path.name}, file={file.name}"
            python_years.check(chosen, where, QueryError, "`lakehouse query` shows it as a text")
            rows += chosen.to_pylist()
    return rows


@lru_cache(_FILES)
def _footer(file: Path) -> tuple[pq.FileMetaData, list[tuple[bytes, bytes] | None]]:
    """Returns a file's footer, and the least and greatest key of each row group.

    None in place of keys that the footer does not say.
    """
    try:
        metadata = pq.read_metadata(source(file))
    except FileNotFoundError as err:
        raise CommitError(
            f"table={file.parent.name}, file={file.name}: the table's log names it and it is not there; "
            f"`lakehouse backfill {file.parent.name}` has the table computed again"
        ) from err
    names = [metadata.schema.column(n).path for n in range(metadata.num_columns)]
    if KEY not in names:
        return metadata, [None] * metadata.num_row_groups
    values = [
        metadata.row_group(n).column(names.index(KEY)).statistics
        for n in range(metadata.num_row_groups)
    ]
    return metadata, [
        (each.min, each.max) if each is not None and each.has_min_max else None for each in values
    ]
