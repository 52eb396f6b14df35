"""The reads of a step of a keyed table: the rows of its inputs that came, went or turned, and those that belong to groups."""

from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow as pa
from pyroaring import BitMap
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StructType

from lakehouse.declare.columns import PARTITION
from lakehouse.ranges import Range
from lakehouse.storage.delta import delta_log, log_state
from lakehouse.storage.delta.row_keys import KEY
from lakehouse.storage.keyed import row_index
from lakehouse.storage.keyed.keyed_reader import KeyedReader
from lakehouse.storage.keyed.row_index import RowIndex, column_of
from lakehouse.storage.session import nullable
from lakehouse.stream.engines.counted_rows import CountedRows, Turn
from lakehouse.stream.engines.keyed import few_at_once
from lakehouse.stream.engines.table_steps import Moved
from lakehouse.stream.micro_batch import StreamRun
from lakehouse.transform import keeping, plan


class GroupReads:
    """The inputs of one table, and how its rows belong to theirs (`transform.analysis.groups`)."""

    def __init__(self, run: StreamRun) -> None:
        self.run, session = run, run.session
        self.uses = keeping.group_uses(run.plan)
        self.tables = {name: session.catalog.table(name) for name in run.plan.followed}
        kept = {name: table for name, table in self.tables.items() if table.kind.is_upserted}
        self.readers = {name: KeyedReader(session.path(table)) for name, table in kept.items()}
        self._indices: dict[str, RowIndex] = {}
        by_input = {
            name: self._by_key(name, keeping.key_columns(run.plan.inputs[name])) for name in kept
        }
        self.by_key = {name: columns for name, columns in by_input.items() if columns}
        self.counted = CountedRows(session, run.table) if run.table.counts_by_time else None

    def _by_key(self, name: str, keys: Sequence[str]) -> list[str]:
        """Returns the columns of the groups that are the whole key of a keyed input, in its order; none if they are not."""
        uses, schema = (
            self.uses.of.get(name, []),
            plan.plan_of(self.run.session, self.tables[name]).schema,
        )
        if len(uses) != 1 or set(uses[0]) != set(keys):
            return []
        if any(isinstance(schema[key].dataType, StructType | ArrayType | MapType) for key in keys):
            return []  # their `_key` has the names, too
        return [self.uses.columns[uses[0].index(key)] for key in keys]

    def belonging_by(self, name: str) -> set[str]:
        """Returns the columns of an input by which its rows belong to groups."""
        return {column_of(value) for use in self.uses.of.get(name, ()) for value in use}

    def columns_of(self, name: str, some: Collection[str] | None = None) -> StructType:
        """Returns the columns of an input, all that its files have or `some`."""
        columns = nullable(plan.plan_of(self.run.session, self.tables[name]).schema)
        return StructType(
            [f for f in columns if (f.name in some if some is not None else f.name != PARTITION)]
        )

    def changed(self, name: str, moved: Moved, span: Range | None) -> pa.Table | None:
        """Returns the rows of an input that came or went; None if only Spark can read them."""
        files = self._changed_files(name, moved, span)
        if not files:
            return _no_rows(self.columns_of(name))
        if (reader := self.readers.get(name)) is None:
            return self.run.session.rows_here(files, self.columns_of(name))
        assert moved.since is not None
        reader.move(moved.since)
        parts = [part for part in reader.changed(moved.until) if part.num_rows]
        if not parts:
            return _no_rows(self.columns_of(name))
        rows = pa.concat_tables(parts, promote_options="permissive")
        return _with_columns(rows, self.columns_of(name))

    def changed_frame(self, name: str, moved: Moved, span: Range | None) -> DataFrame:
        """Returns the same as `changed`, read by Spark. Raises CommitError for a file that is not on disk."""
        session, table = self.run.session, self.tables[name]
        files = self._changed_files(name, moved, span)
        return session.rows_of(table, files, plan.plan_of(session, table).schema)

    def _changed_files(self, name: str, moved: Moved, span: Range | None) -> list[Path]:
        counted = self.counted
        return counted.moved(name, moved, span) if counted and span else list(moved.files)

    def turned(self, name: str, version: int, turn: Turn | None) -> pa.Table | None:
        """Returns the rows of an input with event time that began or ceased to count; None if they are too many."""
        columns = self.belonging_by(name)
        assert self.counted is not None, name
        if turn is None:
            return _no_rows(self.columns_of(name, columns))
        return self.counted.turned(name, version, turn, columns, few_at_once(self.run))

    def found(
        self, name: str, version: int, groups: pa.Table, span: Range | None
    ) -> pa.Table | None:
        """Returns the rows of an input that may belong to the groups; None if all of the input must be searched."""
        if name in self.by_key:
            reader = self.readers[name]
            reader.move(version)
            rows = reader.rows_of(groups[key_in(name)])
        else:
            wanted = groups.select(list(self.uses.columns))
            if version < 0 or not row_index.can_index(wanted.schema.types):
                return None
            index = self._indices.setdefault(name, RowIndex(self.uses.of[name]))
            rows = index.rows_of(self._files(name, version, span), wanted, few_at_once(self.run))
            if rows is None:
                return None
            if self.counted and span and rows.num_rows:
                rows = self.counted.narrowed(name, rows, span)
        columns = self.columns_of(name)
        return _with_columns(rows, columns) if rows is not None and len(rows) else _no_rows(columns)

    def _files(self, name: str, version: int, span: Range | None) -> dict[Path, BitMap]:
        """Returns the data files of an input that may have a row that counts, each with the places of its deleted rows."""
        if (reader := self.readers.get(name)) is not None:
            reader.move(version)
            return reader.files()
        if self.counted and span:
            files = self.counted.files(name, version, span)
        else:
            path = self.run.session.path(self.tables[name])
            files = [delta_log.data_file(path, file) for file in log_state.files_at(path, version)]
        return {file: BitMap() for file in files}


def key_in(name: str) -> str:
    return f"{KEY}_{name}"


def turned_of(name: str) -> str:
    return f"{name}, turned"


def _with_columns(rows: pa.Table, columns: StructType) -> pa.Table:
    """Returns these columns of the rows, with null in one that was added to the table after all of them were written."""
    for column in to_arrow_schema(columns, timezone="UTC"):
        if column.name not in rows.column_names:
            rows = rows.append_column(column, pa.nulls(len(rows), column.type))
    return rows.select(columns.names)


def _no_rows(columns: StructType) -> pa.Table:
    return to_arrow_schema(columns, timezone="UTC").empty_table()
