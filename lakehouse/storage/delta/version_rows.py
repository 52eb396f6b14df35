"""The rows that a version of a table removed and added, and all rows that it has: from data files, without a JVM.

One commit removes and adds a file whose deletion vector changes: only the rows in which the two
vectors differ count.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from lakehouse.declare.columns import ARRIVAL
from lakehouse.errors import CommitError
from lakehouse.storage.delta import deletion_vectors, delta_log, log_state
from lakehouse.storage.disk.objects import source

# the columns of each table as they were read last, and the stamp of that version: opening a log costs 7 to 30 ms
_known: dict[Path, tuple[str, pa.Schema]] = {}


def moved(path: Path, version: int) -> tuple[pa.Table, pa.Table]:
    """Returns the rows that went and those that came, with `_arrival` if there is one, but no other technical columns.

    Rows that were only moved to another file are in both. Raises CommitError if the log does not
    have the version any more, or a file is not on disk.
    """
    files = delta_log.moved(path, version)
    if files is None:
        raise CommitError(
            f"table={path.name}, version={version}: its log does not have this version any more"
        )
    removed = {file["path"]: file for kind, file in files if kind == "remove"}
    added = {file["path"]: file for kind, file in files if kind == "add"}
    schema = _schema(path, version)
    went, came = [], []
    for name in sorted(removed.keys() | added.keys()):
        before, now = removed.get(name), added.get(name)
        if before and now:
            dead, dying = (deletion_vectors.dead_of(path, each) for each in (before, now))
            went.append(_rows(path, now, schema, dying - dead))
            came.append(_rows(path, now, schema, dead - dying))
        elif only := before or now:
            (went if before else came).append(_living(path, only, schema))
    return _joined(went, schema), _joined(came, schema)


def all_at(path: Path, version: int) -> pa.Table:
    """Returns the rows of a version, with the columns of `moved`. Raises CommitError as that does."""
    files = log_state.at(path, version).files
    schema = _schema(path, version)
    return _joined([_living(path, files[name], schema) for name in sorted(files)], schema)


def columns(path: Path, version: int) -> pa.Schema:
    """Returns the columns of the rows of a version, without technical ones."""
    return pa.schema([field for field in _schema(path, version) if field.name != ARRIVAL])


def _schema(path: Path, version: int) -> pa.Schema:
    stamp = delta_log.stamp(path, version)
    known, schema = _known.get(path, ("", None))
    if schema is None or not _same_columns(path, version, known, stamp):
        # not from the files: these may lack a column that was added since
        stored = pa.schema(delta_log.open_table(path, version).schema().to_arrow())
        schema = pa.schema(
            [field for field in plain(stored) if field.name == ARRIVAL or field.name[0] != "_"]
        )
    if stamp:
        _known[path] = stamp, schema
    return schema


def _same_columns(path: Path, version: int, known: str, stamp: str) -> bool:
    """Returns True if the version is the one with the stamp `known`, or the next one and changes none of its columns."""
    if known == stamp:
        return True
    found = (
        delta_log.actions(path, version) if known == delta_log.stamp(path, version - 1) else None
    )
    return found is not None and not any("metaData" in action for action in found)


def plain(schema: pa.Schema) -> Iterator[pa.Field]:
    """Yields the columns as files have them: deltalake gives views in place of texts."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return (field.with_type(plain.get(field.type, field.type)) for field in schema)


def _living(path: Path, file: Mapping, schema: pa.Schema) -> pa.Table:
    rows = rows_of(path, file, schema)
    return deletion_vectors.living(rows, deletion_vectors.dead_of(path, file))


def _rows(path: Path, file: Mapping, schema: pa.Schema, marked: BitMap) -> pa.Table:
    if not marked:
        return schema.empty_table()
    return rows_of(path, file, schema).take(pa.array(deletion_vectors.places(marked)))


def rows_of(path: Path, file: Mapping, schema: pa.Schema) -> pa.Table:
    """Returns all rows of a data file with these columns, also those that are dead. Raises CommitError if it is not on disk."""
    try:
        stored = pq.ParquetFile(source(delta_log.data_file(path, file)))
    except FileNotFoundError as err:
        raise CommitError(
            f"table={path.name}, file={file['path']}: the rows of an old version are in it, and it is not on disk any more"
        ) from err
    present = set(stored.schema_arrow.names)
    rows = stored.read(columns=[name for name in schema.names if name in present])
    columns = [
        rows[field.name].cast(field.type)
        if field.name in present
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _joined(parts: list[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *parts])
