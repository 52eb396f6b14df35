"""Tables with a row, or versions, for each key: a step writes the rows that it changes, and marks those that they replace.

A step is one Delta commit without a Spark job: a small file of the new rows, sorted by `_key`;
deletion vectors for the rows that they take the place of (`key_index` knows where those are); and
at most one piece of tidying, so that files stay few and mostly alive. Small files are merged with
the new rows; a large one of which a third is dead is written again. All of it is a change of data
to Delta, so that whoever writes the same files meanwhile is refused. `benchmarks.keyed_step`
measures it.
"""

import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from lakehouse.storage.delta import committer, deletion_vectors, log_state, table_creation
from lakehouse.storage.delta.log_state import LogState
from lakehouse.storage.delta.row_keys import KEY
from lakehouse.storage.disk.files import remove_tree, rename
from lakehouse.storage.disk.objects import for_spark, source, written_whole
from lakehouse.storage.keyed import key_index
from lakehouse.storage.keyed.key_index import File, Index, keys_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LARGE = 250_000  # rows of a file that is merged no more: it is written in about 0.3 CPU seconds
# rows of a row group: what is decoded to read one row of it. Of a million versions with eight
# columns those of 100 keys are read in 0.08 CPU seconds with 4,096 and in 0.04 with 1,024; a file
# of 250,000 is written in 0.23 and 0.36
GROUP = 2_048
_MANY = 6  # small files of about one size, which are merged
_GROWTH = 4  # small files are of about one size if the rows of one are less than so many times those of another
_LEAST = 1_024  # rows; smaller files are of one size
_DEAD = 1 / 3  # of a file, above which it is written again
_STAGED = "_staged-"
_DAY = 86_400
_known: dict[Path, Index] = {}
_lock = threading.Lock()


def can_upsert(path: Path) -> bool:
    """Returns True if every row of the table has its key.

    Those of an earlier version of the library have none.
    """
    return _opened(path).complete


def rows_of(path: Path, keys: pa.ChunkedArray) -> pa.Table | None:
    """The rows of these keys, in no order; None if there are none."""
    return _opened(path).rows_of(keys)


def upsert(
    rows: pa.Table,
    path: Path,
    app: str,
    batch: int,
    metadata: str,
    touched: pa.ChunkedArray | None = None,
) -> int:
    """Has the `rows` take the place of all rows of the `touched` keys (default: their own), and returns the version.

    They are the batch of `app`; `metadata` is noted with it. Raises CommitError if `app` has
    committed that batch before: two writers of one table exclude each other.
    """
    touched_keys = keys_of(rows[KEY] if touched is None else touched)
    index: Index
    taken_in: list[File] = []

    def log() -> LogState:
        nonlocal index
        index = _opened(path)
        return index.state

    def change(_: LogState) -> list[dict]:
        dying = index.found(touched_keys)
        merged = _untidy(index, dying, rows.num_rows)
        parts = [
            rows,
            *(
                file.live(dying.get(file.name, np.empty(0, np.intp))).select(rows.column_names)
                for file in merged
            ),
        ]
        added = list(_written(_joined(parts, rows.schema), path))
        gone = {file.name for file in merged}
        gone |= {
            name for name, places in dying.items() if len(places) == index.files[name].live_rows
        }
        marked = _marked(
            path,
            [(index.files[name], places) for name, places in dying.items() if name not in gone],
        )
        removed = [index.files[name].named for name in gone | {file.name for file in marked}]
        taken_in[:] = [*marked, *added]
        return [*map(committer.removal, removed), *({"add": file.named} for file in taken_in)]

    operation = _operation("Update", app, batch)
    version = committer.commit(log, change, metadata, (app, batch), **operation)
    _follow(index, taken_in)
    return version


def replace(
    rows: "DataFrame",
    path: Path,
    app: str,
    batch: int,
    metadata: Callable[[], str],
    files: int,
    keys: Sequence[str],
) -> int:
    """Has the `rows` of a DataFrame, which Spark writes into so many files, take the place of all that the table has.

    Its columns, and the `keys` by which its rows are found, are theirs from then on.
    """
    staged = _stage(rows, path, files)
    try:
        added = [_taken_in(file, path) for file in sorted(staged.glob("part-*.parquet"))]
    finally:
        remove_tree(staged)

    def change(log: LogState) -> list[dict]:
        declared = table_creation.redeclared(log, rows.schema, keys)
        removed = map(committer.removal, log.files.values())
        return [*declared, *removed, *({"add": named} for named in added if named)]

    operation = _operation("Complete", app, batch)
    log = partial(log_state.newest, path)
    version = committer.commit(log, change, metadata(), (app, batch), **operation)
    forget(path)
    return version


def forget(path: Path) -> None:
    """Lets go of what is known of the table, as a process does that ends."""
    with _lock:
        _known.pop(path, None)


def _opened(path: Path) -> Index:
    with _lock:
        index = _known.get(path)
    if index is None:
        index = key_index.read(path)
    else:
        index.renew()
    with _lock:
        _known[path] = index
    return index


def _follow(index: Index, files: list[File]) -> None:
    """Has the index follow a commit of this process."""
    for file in files:
        index.files[file.name] = file
    for name in index.files.keys() - index.state.files.keys():
        del index.files[name]


def _untidy(index: Index, dying: dict[str, np.ndarray], new: int) -> list[File]:
    """The files that this step writes again, with its own rows: small ones that are many, or a large one that is mostly dead."""
    sizes: dict[int, list[File]] = {}
    for file in index:
        if file.live_rows < LARGE // 2:
            sizes.setdefault(_size(file.live_rows), []).append(file)
    for _, files in sorted(sizes.items()):
        files.sort(key=lambda file: file.live_rows)
        taken = list(_at_most(files, LARGE - new))
        if len(taken) >= _MANY or (len(taken) > 1 and len(taken) < len(files)):
            return taken
    dead = {
        file.name: (file.dead_rows + len(dying.get(file.name, ()))) / max(len(file.keys), 1)
        for file in index
    }
    worst = max(dead, key=lambda name: dead[name], default="")
    return (
        [index.files[worst]]
        if worst and dead[worst] > _DEAD and len(index.files[worst].keys) > _LEAST
        else []
    )


def _size(rows: int) -> int:
    return max(0, int(math.log(max(rows, 1) / _LEAST, _GROWTH)))


def _at_most(files: list[File], rows: int) -> Iterator[File]:
    for file in files:
        rows -= file.live_rows
        if rows < 0:
            return
        yield file


def _joined(parts: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """The rows of all parts, sorted by their keys."""
    rows = pa.concat_tables([part.cast(schema) for part in parts])
    keys = keys_of(rows[KEY])
    return rows if keys.order is None else rows.take(pa.array(keys.order))


def _written(rows: pa.Table, path: Path) -> Iterator[File]:
    """Writes the sorted rows in files of about one size."""
    pieces = math.ceil(rows.num_rows / LARGE)
    ends = [rows.num_rows * n // pieces for n in range(pieces + 1)] if pieces else []
    for start, end in pairwise(ends):
        part, name = rows.slice(start, end - start), committer.new_name()
        with written_whole(path / name) as sink:
            pq.write_table(
                part,
                sink,
                compression="snappy",
                coerce_timestamps="us",
                store_decimal_as_integer=True,
                row_group_size=GROUP,
                write_statistics=[KEY],
                use_dictionary=[column for column in rows.column_names if column != KEY],
            )
        named = committer.new_file(path, name, {"numRecords": part.num_rows})
        yield File(path, named, keys_of(part[KEY]), BitMap())


def _marked(path: Path, dying: list[tuple[File, np.ndarray]]) -> list[File]:
    """The files with the rows at these places dead as well."""
    marked = []
    for file, places in dying:
        marked.append(File(path, file.named, file.keys, file.dead | deletion_vectors.marks(places)))
    vectors = deletion_vectors.write(path, [file.dead for file in marked]) if marked else []
    for file, (old, _), vector in zip(marked, dying, vectors, strict=True):
        stats = json.dumps({"numRecords": len(file.keys), "tightBounds": False})
        file.named = old.named | {"dataChange": True, "stats": stats, "deletionVector": vector}
        if "metadata" in vars(old):
            file.metadata = old.metadata
    return marked


def _stage(rows: "DataFrame", path: Path, files: int) -> Path:
    """Has Spark write the rows, each file a range of keys in order, into a folder of the table that no reader looks into."""
    for left in path.glob(f"{_STAGED}*"):  # by a process that was killed
        if time.time() - left.stat().st_mtime > _DAY:
            remove_tree(left)
    staged = path / f"{_STAGED}{uuid.uuid4()}"
    spread = rows.repartitionByRange(files, KEY) if files > 1 else rows.coalesce(1)
    options: dict[str, str | int] = {
        "parquet.block.row.count.limit": GROUP,
        f"parquet.enable.dictionary#{KEY}": "false",
        "compression": "snappy",
    }
    spread.sortWithinPartitions(KEY).write.options(**options).parquet(for_spark(staged))
    return staged


def _taken_in(file: Path, path: Path) -> dict | None:
    """Moves a file that Spark has written into the table; None of one without rows."""
    rows = pq.read_metadata(source(file)).num_rows
    if not rows:
        return None
    name = committer.new_name()
    rename(file, path / name)
    return committer.new_file(path, name, {"numRecords": rows})


def _operation(mode: str, app: str, batch: int) -> dict:
    parameters = {"outputMode": mode, "queryId": app, "epochId": str(batch)}
    return {"operation": "STREAMING UPDATE", "operationParameters": parameters}
