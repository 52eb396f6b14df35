"""Rows that this process has just written, kept in memory for their next readers: by file, only the newest of them.

A step reads rows that the step before it in the pipeline committed a moment ago. Memory needs no file,
and no plan that reads one.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

_BYTES = 64 << 20  # the limit of rows in memory, as Arrow; the oldest go first

# with their number of bytes, which takes a while to count
_kept: OrderedDict[Path, tuple[pa.Table, int]] = OrderedDict()
_lock = threading.Lock()


def keep(file: Path, rows: pa.Table) -> None:
    """Keeps the rows of a file as a reader gets them, partition column included."""
    with _lock:
        _kept[file] = rows, rows.nbytes
        size = sum(size for _, size in _kept.values())
        while size > _BYTES:
            _, (_, gone) = _kept.popitem(last=False)
            size -= gone


def rows_of(files: Iterable[Path]) -> pa.Table | None:
    """Returns the rows of these files, in their order.

    None if one of the files is not kept any more, or never was.
    """
    with _lock:
        entries = [_kept.get(file) for file in files]
    kept = [each[0] for each in entries if each is not None]
    if not kept or len(kept) < len(entries):
        return None
    # promoted: one plan knows that a column is never null, and another plan does not
    return pa.concat_tables(kept, promote_options="default")
