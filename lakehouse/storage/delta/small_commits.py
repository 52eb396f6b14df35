"""Commits without a Spark job: rows, batch and position in one Delta commit.

The rows of a short step, as Arrow, or files, which Spark has written. Commits of several processes need no lock:
of two that make one version the second looks what the first has changed, and tries the next.

A commit by Spark costs a third of a CPU second whatever it holds; this one a fiftieth of that. The
files of a short step are as Spark's own: Snappy, timestamps in microseconds, a folder for each
partition, and the statistics of the columns that the table asks for.
"""

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import StructType

from lakehouse.declare.columns import PARTITION
from lakehouse.errors import CommitError
from lakehouse.storage.delta import delta_log, log_state, write_cache
from lakehouse.storage.delta.delta_log import PATIENCE, open_table
from lakehouse.storage.disk.files import link

_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_LONGEST = 32  # characters of a text that a statistic holds whole
# the log of each table as it was read last, and the stamp of that version
_known: dict[Path, tuple[DeltaTable, str]] = {}
_lock = threading.Lock()


def can_hold(schema: pa.Schema) -> bool:
    """Whether files of these columns are read by Spark as its own would be."""
    return all(_plain(column.type) for column in schema)


def append(rows: pa.Table, path: Path, app: str, batch: int, metadata: str) -> int:
    """Appends the rows as the batch of `app`, noting `metadata` with them, and returns the version.

    Raises CommitError if `app` has committed that batch before: two writers of one table exclude
    each other.
    """
    return commit(files_of(rows, path), path, app, batch, metadata)


def files_of(rows: pa.Table, path: Path) -> list[AddAction]:
    """Writes the rows as files of the table, which a commit is yet to name."""
    table = _table(path)
    _keep(path, table)
    searched = _searched(table)
    partitioned = table.metadata().partition_columns == [PARTITION]
    columns = [
        field.name
        for field in table.schema().fields
        if not (partitioned and field.name == PARTITION)
    ]
    return [_written(part, columns, path, key, searched) for key, part in _parts(rows, partitioned)]


def commit(files: Sequence[AddAction], path: Path, app: str, batch: int, metadata: str) -> int:
    """As `append`, of files that are written already."""

    def check(table: DeltaTable) -> None:
        last = table.transaction_version(app)
        if last is not None and last >= batch:
            raise CommitError(
                f"table={path.name}, batch={batch}: {app} has committed batch {last} already, so another process writes the "
                "table, too; end one of them"
            )

    return _commit(path, files, metadata, check, [Transaction(app, batch)])


def replace(
    added: Sequence[AddAction],
    removed: Sequence[Mapping],
    path: Path,
    read: int,
    partitions: Collection[str] | None,
    metadata: str,
) -> int:
    """Puts files in the place of those that the table had in these partitions (None: in all) at the version `read`.

    Raises CommitError if another run has changed one of the partitions since.
    """
    checked = read

    def check(table: DeltaTable) -> None:
        nonlocal checked
        for version in range(checked + 1, table.version() + 1):
            if _changes(path, version, partitions):
                raise CommitError(
                    f"table={path.name}, version={version}: another run changed what was being replaced; nothing was changed, "
                    "run this again"
                )
        checked = table.version()

    return _commit(path, [*added, *map(_removal, removed)], metadata, check)


def _changes(path: Path, version: int, partitions: Collection[str] | None) -> bool:
    actions = delta_log.actions(path, version)
    if actions is None:  # the log was cut meanwhile
        return True
    for action in actions:
        file = action.get("add") or action.get("remove")
        if "metaData" in action or (file and partitions is None):
            return True
        if file and (file.get("partitionValues") or {}).get(PARTITION) in (partitions or ()):
            return True
    return False


def _removal(file: Mapping) -> RemoveAction:
    values = {
        name.removeprefix("partition."): file[name]
        for name in file
        if name.startswith("partition.")
    }
    return RemoveAction(file["path"], True, time.time_ns() // 1_000_000, file["size_bytes"], values)


def _commit(
    path: Path,
    actions: Sequence[AddAction | RemoveAction],
    metadata: str,
    check: Callable[[DeltaTable], None],
    batches: Sequence[Transaction] = (),
) -> int:
    """Makes the next version of the table, if `check` raises nothing for the versions before."""
    properties = CommitProperties(
        custom_metadata={"userMetadata": metadata},
        app_transactions=list(batches),
        max_commit_retries=0,
    )
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        table = _table(path)
        try:
            check(table)
        except DeltaError:  # another process has cut the log: files that are read only now are gone
            table = open_table(path)
            check(table)
        version = table.version() + 1
        try:
            table.create_write_transaction(
                list(actions),
                "append",
                table.schema(),
                table.metadata().partition_columns or None,
                commit_properties=properties,
            )
        except CommitFailedError:
            if delta_log.latest(path) < version:
                raise
            _keep(path, table)
            continue  # another writer was faster
        table.update_incremental()
        _keep(path, table)
        return version
    raise CommitError(
        f"table={path.name}: other writers have committed for {PATIENCE:.0f} s without a pause; end them, and run this again"
    )


def exchange(source: Path, path: Path, app: str, batch: int, metadata: str) -> int:
    """All files of the table in `source` in the place of those that are there, with its columns, in one commit."""
    new = open_table(source)
    files = log_state.newest(source).files.values()
    for file in files:
        beside = delta_log.data_file(path, file)
        beside.parent.mkdir(exist_ok=True)
        if not beside.exists():
            link(delta_log.data_file(source, file), beside)
    properties = CommitProperties(
        custom_metadata={"userMetadata": metadata}, app_transactions=[Transaction(app, batch)]
    )
    table = open_table(path)
    if table.transaction_version(app) is None:
        table.create_write_transaction(
            [added(file) for file in files],
            "overwrite",
            new.schema(),
            table.metadata().partition_columns or None,
            commit_properties=properties,
        )
        table.update_incremental()
    forget(path)
    return table.version()


def add_columns(path: Path, columns: StructType) -> None:
    """Adds these columns behind those that the table has."""
    open_table(path).alter.add_columns(Schema.from_json(columns.json()).fields)
    forget(path)


def redeclare(path: Path, columns: StructType) -> None:
    """Has a table without a row have these columns, unless it has them."""
    # without what may be null within a nested column: a plan over tables on disk knows less of it
    stored, wanted = (
        [(field.name, field.dataType.simpleString()) for field in each]
        for each in (delta_log.schema(path), columns)
    )
    if stored == wanted:
        return
    table, schema = open_table(path), Schema.from_json(columns.json())
    table.create_write_transaction(
        [], "overwrite", schema, table.metadata().partition_columns or None
    )
    forget(path)


def forget(path: Path) -> None:
    """Lets go of what is known of the table."""
    with _lock:
        _known.pop(path, None)


def added(file: Mapping) -> AddAction:
    """A file that Spark has written, by what Delta's log would say of it."""
    values, path = dict(file["partitionValues"]), unquote(file["path"])
    return AddAction(
        path, file["size"], values, file["modificationTime"], True, file.get("stats") or "{}"
    )


def identity(path: Path) -> str:
    """The id of the table that is there."""
    table = _table(path)
    _keep(path, table)
    return str(table.metadata().id)


def _table(path: Path) -> DeltaTable:
    """The table's log up to now: what this process knows of it and what came since, or all if it is another one by now.

    The caller alone has it, until it is kept again.
    """
    with _lock:
        table, stamp = _known.pop(path, (None, ""))
    if table is None or stamp != delta_log.stamp(path, table.version()):
        return open_table(path)
    if delta_log.stamp(path, table.version() + 1):
        table.update_incremental()
    return table


def _keep(path: Path, table: DeltaTable) -> None:
    with _lock:
        _known[path] = table, delta_log.stamp(path, table.version())


def _searched(table: DeltaTable) -> list[str]:
    named = table.metadata().configuration.get("delta.dataSkippingStatsColumns") or ""
    return [name.strip() for name in named.split(",") if name.strip()]


def _parts(rows: pa.Table, partitioned: bool) -> Iterator[tuple[str | None, pa.Table]]:
    if not rows.num_rows:
        return
    if not partitioned:
        yield "", rows
        return
    keys = rows[PARTITION]
    for key in pc.unique(keys).to_pylist():
        yield key, rows.filter(pc.is_null(keys) if key is None else pc.equal(keys, key))


def _written(
    part: pa.Table, columns: list[str], path: Path, key: str | None, searched: list[str]
) -> AddAction:
    """Writes one file of one partition (of none: "")."""
    rows = part.select(columns)
    name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    folder = "" if key == "" else f"{PARTITION}={_NO_PARTITION if key is None else key}/"
    (path / folder).mkdir(exist_ok=True)
    file = path / folder / name
    pq.write_table(
        rows, file, compression="snappy", coerce_timestamps="us", store_decimal_as_integer=True
    )
    write_cache.keep(file, rows if key == "" else rows.append_column(PARTITION, part[PARTITION]))
    values = {} if key == "" else {PARTITION: key}
    size, now = os.stat(file).st_size, time.time_ns() // 1_000_000
    return AddAction(folder + name, size, values, now, True, _statistics(rows, searched))


def _statistics(rows: pa.Table, searched: list[str]) -> str:
    least, greatest, nulls = {}, {}, {}
    for name in searched:
        if name in rows.column_names:
            column = rows[name].combine_chunks()
            least[name], greatest[name], nulls[name] = _of_column(column)
    statistics = {
        "minValues": _known_only(least),
        "maxValues": _known_only(greatest),
        "nullCount": nulls,
    }
    return json.dumps({"numRecords": rows.num_rows} | statistics)


def _of_column(column: pa.Array) -> tuple:
    """Least, greatest and count of nulls: of a struct those of its fields."""
    if pa.types.is_struct(column.type):
        parts = {
            field.name: _of_column(pc.struct_field(column, [field.name])) for field in column.type
        }
        return tuple({name: part[place] for name, part in parts.items()} for place in range(3))
    ends = pc.min_max(column)
    return _shown(ends["min"].as_py()), _shown(ends["max"].as_py()), column.null_count


def _shown(value: object) -> str | None:
    """As Delta writes it: an instant cut to milliseconds.

    None where it would have to be cut in a way of its own.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value if isinstance(value, str) and len(value) <= _LONGEST else None


def _known_only(values: Mapping[str, object]) -> dict[str, object]:
    kept = {
        name: _known_only(value) if isinstance(value, dict) else value
        for name, value in values.items()
    }
    return {name: value for name, value in kept.items() if value not in (None, {})}


def _plain(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_plain(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _plain(kind.value_type)
    if pa.types.is_map(kind):
        return _plain(kind.key_type) and _plain(kind.item_type)
    tests = ("boolean", "integer", "floating", "string", "binary", "decimal", "date32", "timestamp")
    return any(getattr(pa.types, f"is_{test}")(kind) for test in tests)
