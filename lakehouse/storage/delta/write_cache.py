"""What this process has just written, kept in memory for those who read it next: rows by their file, the newest of them.

A step reads what the step before it in the pipeline committed a moment ago. From memory that costs
no file and no plan of one.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

_BYTES = 64 << 20  # of rows in memory, as Arrow; the oldest go first

# with their bytes, which take a while to count
_kept: OrderedDict[Path, tuple[pa.Table, int]] = OrderedDict()
_lock = threading.Lock()


def keep(file: Path, rows: pa.Table) -> None:
    """Keeps the rows of a file, as they are read from it, partition column included."""
    with _lock:
        _kept[file] = rows, rows.nbytes
        size = sum(size for _, size in _kept.values())
        while size > _BYTES:
            _, (_, gone) = _kept.popitem(last=False)
            size -= gone


def rows_of(files: Iterable[Path]) -> pa.Table | None:
    """The rows of these files, in their order.

    None if one of them is not kept any more, or was never.
    """
    with _lock:
        entries = [_kept.get(file) for file in files]
    kept = [each[0] for each in entries if each is not None]
    if not kept or len(kept) < len(entries):
        return None
    # promoted: what one plan knows to be never null, another does not
    return pa.concat_tables(kept, promote_options="default")
