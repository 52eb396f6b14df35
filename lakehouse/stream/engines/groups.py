"""The stream of a keyed table that is more than one aggregate: joins, aggregates of aggregates, ranks, filters after them.

A step looks at what came and went of its inputs, and takes the values by which it belongs to rows of
the table (`transform.analysis.groups`). The function computes these rows again, from the rows of the
inputs that belong to them. They take the place of those that are there. If no such columns are
known, or too much has changed, the function computes the table whole, and what differs is written.

In either case each version of the table is what the function makes of the input versions that its
commit names. With `ttl` or `final_rows` it uses only rows that count at the frontier in that commit
(`stream.engines.counted_rows`). Rows that begin or cease to count are as if they came or went.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyroaring import BitMap
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

from lakehouse.declare.columns import PARTITION
from lakehouse.errors import CommitError
from lakehouse.ranges import Range
from lakehouse.storage.delta import delta_log, delta_writer, log_state, row_keys
from lakehouse.storage.delta.arrow import in_memory, in_spark
from lakehouse.storage.delta.digest import row_hashes
from lakehouse.storage.delta.row_keys import KEY, keyed
from lakehouse.storage.keyed import keyed_files, row_index
from lakehouse.storage.keyed.keyed_reader import KeyedReader
from lakehouse.storage.keyed.row_index import RowIndex, column_of
from lakehouse.stream.advance import Take
from lakehouse.stream.engines.counted_rows import CountedRows, Turn
from lakehouse.stream.engines.group_writes import ROW, GroupWrites, Write
from lakehouse.stream.engines.keyed import few_at_once, quiet_due, upsert, whole
from lakehouse.stream.engines.sums import Sums
from lakehouse.stream.engines.table_steps import Due, Moved
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.transform import counting, keeping, plan
from lakehouse.transform.analysis.groups import belonging, values

_log = logging.getLogger(__name__)

_MANY = 20_000  # groups that changed in a step; with more the table is computed whole


def group_steps(run: StreamRun) -> tuple[Take, Due, Due]:
    """Returns steps that compute again what belongs to the rows that came and went."""
    groups = _Groups(run)
    if not groups.uses.columns and groups.sums is None:
        message = (
            f"table={run.table.name}: no column ties its rows to rows of {', '.join(run.plan.followed)}, so each step computes "
            "it whole; that is right while these are small; else split it, with a keyed table by what it joins before it"
        )
        _log.warning(message)

    def step(moved: Mapping[str, Moved], batch_id: int, log: BatchLog) -> None:
        before = run.commit_log.before(run.generation, batch_id)
        start = run.frontier_after(before)
        ahead = max(start, run.complete(log.inputs) or start)
        if groups.counted:  # a replayed step keeps its frontier, which decided which rows count
            ahead = run.noted_frontier(batch_id, start) or ahead
        pinned = groups.pin(batch_id)
        inputs = {"tables": log.inputs, "references": pinned}
        note: dict[str, Any] = {"inputs": inputs, "watermark": ahead, "frontier": ahead}
        # rows that no input has touched since were computed with what was pinned then
        renewed = before is not None and before.inputs["references"] != pinned
        turn = groups.counted.turn(start, ahead) if groups.counted else None
        if log.quiet is not None and not renewed and not turn:
            run.skip(batch_id, before, **note)
            return
        if groups.counted:
            note["late"] = groups.counted.count_late(moved)
        span = counting.span_of(run.table, ahead)
        with groups.change(moved, batch_id, span, turn, whole=renewed) as (written, write):
            run.keep(write, batch_id, arrived=log.rows or 0, written=written, **note)

    gone_on = quiet_due(run)

    def due(offset: Mapping[str, Any]) -> bool:
        return groups.are_outdated() or gone_on(offset)

    return step, due if run.table.final_rows else lambda offset: True, due


class _TooMany(Exception):
    """The sign that more rows began or ceased to count than the job itself looks at."""


class _Groups:
    """The reads and writes of one table's steps: what they read of their inputs, and what of the table they write."""

    def __init__(self, run: StreamRun) -> None:
        self.run, session = run, run.session
        self.references, self.pinned = run.references(), run.pinned
        self.refreshed = [t for t in session.catalog.pinned_inputs(run.table) if t.refresh]
        self.uses = keeping.group_uses(run.plan)
        self.keys = keeping.key_columns(run.plan)
        self.writes = GroupWrites(run, self.keys)
        self.tables = {name: session.catalog.table(name) for name in run.plan.followed}
        kept = {name: table for name, table in self.tables.items() if table.kind.is_upserted}
        self.readers = {name: KeyedReader(session.path(table)) for name, table in kept.items()}
        self.indices: dict[str, RowIndex] = {}
        by_input = {
            name: self._by_key(name, keeping.key_columns(run.plan.inputs[name])) for name in kept
        }
        self.by_key = {name: columns for name, columns in by_input.items() if columns}
        self.counted = CountedRows(session, run.table) if run.table.counts_by_time else None
        self.sums = self._sums()

    def _present(self) -> dict[str, int]:
        path = self.run.session.path
        return self.pinned | {t.name: delta_log.latest(path(t)) for t in self.refreshed}

    def are_outdated(self) -> bool:
        """Returns True if the table was computed with other versions of reference tables than there are now."""
        last = next(self.run.commit_log.by_stream(), None)
        return last is not None and last.inputs["references"] != self._present()

    def pin(self, batch: int) -> Mapping[str, int]:
        """Pins and returns the versions of reference tables of a step: the present ones, or its own if its rows are written."""
        run = self.run
        if batch <= run.committed:
            noted = delta_writer.noted(run.session.path(run.table), run.app(batch), batch)
            return noted["inputs"]["references"] if noted else self.pinned
        present = self._present()
        for name in (t.name for t in self.refreshed if present[t.name] != self.pinned[t.name]):
            self.references[name].unpersist()
            self.references |= {name: run.session.references({name: present[name]})[name].persist()}
        self.pinned = present
        return present

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

    @contextmanager
    def change(
        self,
        moved: Mapping[str, Moved],
        batch_id: int,
        span: Range | None,
        turn: Turn | None,
        *,
        whole: bool,
    ) -> Iterator[tuple[int, Write | None]]:
        """Yields how many rows a step brings, and the function that writes them; None if it changes none.

        `span`: the event times of the rows that count, if not all do, and `turn`: how it differs from the step before.
        `whole`: all rows are computed, whatever was touched.
        """
        run = self.run
        if batch_id <= run.committed:  # it is in the table, and lacks its line in the commit log
            noted = delta_writer.noted(run.session.path(run.table), run.app(batch_id), batch_id)
            yield (noted or {}).get("written", 0), _written_before
            return
        if batch_id and not whole and (added := self._added(moved, batch_id)):
            yield added
            return
        groups = self._touched(moved, span, turn) if batch_id and not whole else None
        if groups is not None and not groups.num_rows:
            yield 0, None
            return
        rows = self._rows(moved, groups, span)
        if set(self.keys) != set(run.table.keys):
            rows = rows.withColumn(ROW, row_keys.column(rows.schema, run.table.keys))
        if batch_id and (few := self.writes.few(rows, groups)) is not None:
            yield self.writes.upserting(few, groups, batch_id)
            return
        rows = rows.persist()
        try:
            yield self.writes.replacing(rows, groups, batch_id)
        finally:
            rows.unpersist()

    def _sums(self) -> Sums | None:
        added = keeping.adding(self.run.plan)
        if added is None or set(self.keys) != set(self.run.table.keys):
            return None
        (reader,) = self.readers.values()
        return Sums(self.run, reader, added)

    def _added(self, moved: Mapping[str, Moved], batch_id: int) -> tuple[int, Write | None] | None:
        """Returns the same as `change`, by what came and what went alone; None if that is not enough."""
        if self.sums is None:
            return None
        differences = self.sums.step(moved[self.sums.name], self.references)
        if differences is None:
            return None
        if not len(differences.keys):
            return 0, None
        columns = self.run.plan.schema.names

        def write(path: Path, app: str, metadata: delta_writer.Metadata) -> int:
            new, unknown = differences.to(keyed_files.rows_of(path, differences.keys))
            new = new.select(columns)
            if unknown.num_rows:
                again = self._again(moved, unknown)
                if again is None:
                    _, whole = self.writes.replacing(self._rows(moved, None, None), None, batch_id)
                    return whole(path, app, metadata)
                new = pa.concat_tables([new, again.select(columns).cast(new.schema)])
            return upsert(self.run, new, path, app, batch_id, metadata, differences.keys)

        return len(differences.keys), write

    def _again(self, moved: Mapping[str, Moved], some: pa.Table) -> pa.Table | None:
        """Returns the rows of some groups, from those of the input that belong to them; None if all must be read for that."""
        if not self.uses.columns:
            return None
        few = in_spark(self.run.session.spark, some.select(list(self.uses.columns)))
        return in_memory(self._rows(moved, self._with_keys(few), None))

    def _touched(
        self, moved: Mapping[str, Moved], span: Range | None, turn: Turn | None
    ) -> pa.Table | None:
        """Returns once each group with a row that came, went or turned; None if they are too many, or not known.

        Each has its `_key`, and its key in those inputs where it is found by that.
        """
        columns, of = self.uses.columns, self.uses.of
        found = columns or self.counted
        if not found or any(each.since is None or each.since < 0 for each in moved.values()):
            return None
        try:
            parts = {
                name: [*self._changed(name, each, span), *self._turned(name, each.until, turn)]
                for name, each in moved.items()
            }
            touched = [
                part.select(*values(use, columns))
                for name in parts
                for part in parts[name]
                for use in of.get(name, ())
            ]
            if not columns and any(parts.values()):
                return None
            if not touched:
                return pa.table({name: [] for name in columns})
            several = reduce(DataFrame.union, touched).distinct().limit(_MANY + 1)
            groups = self._with_keys(several)
        except _TooMany:
            return None
        except (CommitError, FileNotFoundError) as err:
            _log.warning(
                f"table={self.run.table.name}: what it read last is not there any more ({err}), so it is computed whole"
            )
            return None
        return groups if groups is not None and groups.num_rows <= _MANY else None

    def _with_keys(self, groups: DataFrame) -> pa.Table | None:
        """Returns the groups, each with its `_key`, and its key in those inputs where it is found by that."""
        by = {KEY: self.uses.columns} | {_key_in(name): by for name, by in self.by_key.items()}
        keys = {name: row_keys.column(groups.schema, by) for name, by in by.items()}
        return in_memory(groups.withColumns(keys))

    def _turned(self, name: str, version: int, turn: Turn | None) -> list[DataFrame]:
        """Returns, like `_changed`, the rows of an input that began or ceased to count. Raises _TooMany."""
        if turn is None or self.counted is None or name not in self.counted.inputs:
            return []
        columns = self._columns(name)
        rows = self.counted.turned(name, version, turn, columns, few_at_once(self.run))
        if rows is None:
            raise _TooMany
        return [in_spark(self.run.session.spark, rows)] if rows.num_rows else []

    def _columns(self, name: str) -> set[str]:
        """Returns the columns of an input by which its rows belong to groups."""
        return {column_of(value) for use in self.uses.of.get(name, ()) for value in use}

    def _changed(self, name: str, moved: Moved, span: Range | None) -> list[DataFrame]:
        """Returns the rows of an input that came or went, at least with the columns by which they belong to groups."""
        session, table, files = self.run.session, self.tables[name], list(moved.files)
        if self.counted and span:
            files = self.counted.moved(name, moved, span)
        if not files:
            return []
        if (reader := self.readers.get(name)) is None:
            return [session.rows_of(table, files, plan.plan_of(session, table).schema)]
        assert moved.since is not None
        reader.move(moved.since)
        parts = [part for part in reader.changed(moved.until) if part.num_rows]
        if not parts:
            return []
        changed = pa.concat_tables(parts, promote_options="permissive")
        rows = in_spark(session.spark, changed)
        # a row that only moved to another file is there twice
        columns = sorted(self._columns(name))
        once = rows.groupBy(*row_hashes(rows)).agg(
            F.count(F.lit(1)).alias("_times"),
            *(F.first(column).alias(column) for column in columns),
        )
        return [once.where("_times = 1")]

    def _rows(
        self, moved: Mapping[str, Moved], groups: pa.Table | None, span: Range | None
    ) -> DataFrame:
        return keyed(self._computed(moved, groups, span), self.keys)

    def _computed(
        self, moved: Mapping[str, Moved], groups: pa.Table | None, span: Range | None
    ) -> DataFrame:
        """Returns what the function makes of the inputs at their versions: the rows of the groups, or all."""
        session, columns = self.run.session, list(self.uses.columns)
        if groups is None:
            inputs = {
                n: whole(session, self.tables[n], each.until, span) for n, each in moved.items()
            }
            return self.run.plan.kept(inputs, self.references)
        few = in_spark(session.spark, groups.select(columns))
        inputs = {
            name: self._input(name, each.until, groups, few, span) for name, each in moved.items()
        }
        return belonging(self.run.plan.kept(inputs, self.references), few, [columns], columns)

    def _input(
        self, name: str, version: int, groups: pa.Table, few: DataFrame, span: Range | None
    ) -> DataFrame:
        """Returns the rows of an input that belong to the groups."""
        session, table = self.run.session, self.tables[name]
        uses, reader = self.uses.of[name], self.readers.get(name)
        if reader is not None and name in self.by_key:
            reader.move(version)
            of_groups = reader.rows_of(groups[_key_in(name)])
            schema = plan.plan_of(session, table).schema
            if of_groups is None:
                return session.spark.createDataFrame([], schema)
            return in_spark(session.spark, of_groups.select(schema.names))
        of_groups = self._found(name, version, groups, span)
        rows = whole(session, table, version, span) if of_groups is None else of_groups
        return belonging(rows, few, uses, self.uses.columns)

    def _found(
        self, name: str, version: int, groups: pa.Table, span: Range | None
    ) -> DataFrame | None:
        """Returns the rows of an input that may belong to the groups; None if all of the input must be searched."""
        session, table, uses = self.run.session, self.tables[name], self.uses.of[name]
        groups = groups.select(list(self.uses.columns))
        if version < 0 or not row_index.can_index(groups.schema.types):
            return None
        index = self.indices.setdefault(name, RowIndex(uses))
        rows = index.rows_of(self._files(name, version, span), groups, few_at_once(self.run))
        if rows is None:
            return None
        if self.counted and span and rows.num_rows:
            rows = self.counted.narrowed(name, rows, span)
        schema = StructType([f for f in plan.plan_of(session, table).schema if f.name != PARTITION])
        if not rows.num_rows:
            return session.spark.createDataFrame([], schema)
        return in_spark(session.spark, rows.select(schema.names), schema)

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


def _key_in(name: str) -> str:
    return f"{KEY}_{name}"


def _written_before(path: Path, app: str, metadata: delta_writer.Metadata) -> int:
    raise AssertionError(f"{path.name}, {app}: it is written already")
