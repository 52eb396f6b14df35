"""Commits without a Spark job: rows, batch and position in one Delta commit.

The rows of a short step, as Arrow, or files, which Spark has written.

A commit by Spark costs a third of a CPU second whatever it holds; this one a fiftieth of that. The
files of a short step are as Spark's own: Snappy, timestamps in microseconds, a folder for each
partition, and the statistics of the columns that the table asks for.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.declare.columns import PARTITION
from lakehouse.errors import CommitError
from lakehouse.storage.delta import committer, delta_log, log_state, table_creation, write_cache
from lakehouse.storage.delta.log_state import LogState
from lakehouse.storage.disk.files import link
from lakehouse.storage.disk.objects import written_whole

_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_LONGEST = 32  # characters of a text that a statistic holds whole
_OVERWRITE = {"mode": "Overwrite"}


def can_hold(schema: pa.Schema) -> bool:
    """Returns True if Spark reads files of these columns as it reads its own."""
    return all(_plain(column.type) for column in schema)


def files_of(rows: pa.Table, path: Path) -> list[dict]:
    """Writes the rows as files of the table, and returns them as a commit is yet to name them."""
    table = committer.head(path)
    partitioned = table.metadata["partitionColumns"] == [PARTITION]
    columns = [name for name in table.columns if not (partitioned and name == PARTITION)]
    searched = searched_columns(table)
    return [_written(part, columns, path, key, searched) for key, part in _parts(rows, partitioned)]


def searched_columns(table: LogState) -> list[str]:
    """Returns the columns whose least and greatest value each file of the table records."""
    named = table.properties.get("delta.dataSkippingStatsColumns") or ""
    return [name.strip() for name in named.split(",") if name.strip()]


def commit(files: Sequence[Mapping], path: Path, app: str, batch: int, metadata: str) -> int:
    """Appends the files as the batch of `app`, noting `metadata` with them, and returns the version.

    Raises CommitError if `app` has committed that batch before: two writers of one table exclude
    each other.
    """
    added = [{"add": file} for file in files]
    return committer.commit(
        partial(committer.head, path), lambda _: added, metadata, (app, batch), isBlindAppend=True
    )


def replace(
    added: Sequence[Mapping],
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
    actions = [*map(committer.removal, removed), *({"add": file} for file in added)]

    def change(log: LogState) -> list[dict]:
        nonlocal checked
        for version in range(checked + 1, log.version + 1):
            if _changes(path, version, partitions):
                raise CommitError(
                    f"table={path.name}, version={version}: another run changed what was being replaced; nothing was changed, "
                    "run this again"
                )
        checked = log.version
        return actions

    log = partial(committer.head, path)
    return committer.commit(log, change, metadata, operationParameters=_OVERWRITE)


def move(path: Path, files: Sequence[Mapping], whole: Sequence[Mapping], since: int) -> int:
    """Puts files with the same rows in the place of `files`, and returns the version: to its readers no row comes or goes.

    `since`: a version that has the files. Raises CommitError if another run has removed one of them after it.
    """
    names, checked = {file["path"] for file in files}, since
    actions = [*map(committer.removal, files), *({"add": dict(file)} for file in whole)]
    for action in actions:
        for moved in action.values():
            moved["dataChange"] = False

    def change(log: LogState) -> list[dict]:
        nonlocal checked
        for version in range(checked + 1, log.version + 1):
            of_version = delta_log.actions(path, version)
            gone = {action["remove"]["path"] for action in of_version or () if "remove" in action}
            if of_version is None or gone & names:
                raise CommitError(
                    f"table={path.name}, version={version}: another run rewrote what was being compacted; nothing was changed, "
                    "run this again"
                )
        checked = log.version
        return actions

    log = partial(committer.head, path)
    return committer.commit(log, change, "", operation="OPTIMIZE", operationParameters={})


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


def exchange(source: Path, path: Path, app: str, batch: int, metadata: str) -> int:
    """Puts all files and the columns of the table in `source` in the place of those that are there, in one commit.

    Returns its version: that of the first time, if `app` has done so before.
    """
    new = log_state.newest(source)
    for file in new.files.values():
        beside = delta_log.data_file(path, file)
        beside.parent.mkdir(exist_ok=True)
        if not beside.exists():
            link(delta_log.data_file(source, file), beside)
    log = log_state.newest(path)
    if app in log.batches:
        return log.version

    def change(log: LogState) -> list[dict]:
        declared = log.metadata | {"schemaString": new.metadata["schemaString"]}
        return [
            {"protocol": table_creation.both(log.protocol, new.protocol)},
            {"metaData": declared},
            *map(committer.removal, log.files.values()),
            *({"add": file | {"dataChange": True}} for file in new.files.values()),
        ]

    present = partial(log_state.newest, path)
    return committer.commit(present, change, metadata, (app, batch), operationParameters=_OVERWRITE)


def put_back(path: Path, version: int) -> None:
    """Has the table hold the files again that it held at a version, in one commit. Raises CommitError if one is lost."""
    then = log_state.at(path, version).files

    def change(log: LogState) -> list[dict]:
        gone = [file for name, file in log.files.items() if then.get(name) != file]
        back = [file for name, file in then.items() if log.files.get(name) != file]
        if lost := delta_log.lost(path, back):
            raise CommitError(
                f"table={path.name}, version={version}, file={lost[0]['path']}: the table is to be put back, and the file is not "
                "on disk any more; put it back from a copy"
            )
        added = ({"add": file | {"dataChange": True}} for file in back)
        return [*map(committer.removal, gone), *added]

    asked = {"version": version}
    log = partial(log_state.newest, path)
    committer.commit(log, change, "", operation="RESTORE", operationParameters=asked)


def identity(path: Path) -> str:
    """Returns the id of the table that is there."""
    return str(committer.head(path).metadata["id"])


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
) -> dict:
    """Writes one file of one partition (of none: "")."""
    rows = part.select(columns)
    folder = "" if key == "" else f"{PARTITION}={_NO_PARTITION if key is None else key}/"
    (path / folder).mkdir(exist_ok=True)
    name = folder + committer.new_name()
    file = path / name
    with written_whole(file) as sink:
        pq.write_table(
            rows, sink, compression="snappy", coerce_timestamps="us", store_decimal_as_integer=True
        )
        size = 0 if sink is file else len(sink.getbuffer())
    write_cache.keep(file, rows if key == "" else rows.append_column(PARTITION, part[PARTITION]))
    partition = {} if key == "" else {PARTITION: key}
    return committer.new_file(path, name, statistics(rows, searched), partition, size)


def statistics(rows: pa.Table, searched: list[str]) -> dict:
    """Returns the statistics of a file with these rows, as a commit names them."""
    least, greatest, nulls = {}, {}, {}
    for name in searched:
        if name in rows.column_names:
            column = rows[name].combine_chunks()
            least[name], greatest[name], nulls[name] = _of_column(column)
    return {
        "numRecords": rows.num_rows,
        "minValues": _known_only(least),
        "maxValues": _known_only(greatest),
        "nullCount": nulls,
    }


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
    """Returns a value as Delta writes it: an instant is cut to milliseconds.

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
