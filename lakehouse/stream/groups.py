"""The stream of a keyed table that is more than one aggregate: joins, aggregates of aggregates, ranks, filters behind them.

A step looks at what came and went of its inputs, takes the values by which it belongs to rows of
the table (`transform.groups`), and has the function compute these rows again, from the rows of the
inputs that belong to them. They take the place of those that are there. Where no such columns are
known, or too much has changed, the function computes the table whole, and what differs is written.

In either case the table is, at each of its versions, what the function makes of the versions of the
inputs that the commit names.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.declare.columns import PARTITION
from lakehouse.errors import CommitError, JobError
from lakehouse.storage import delta_log, delta_writer, keyed_files, log_state, row_index, row_keys
from lakehouse.storage.arrow import in_memory, in_spark
from lakehouse.storage.digest import row_hashes
from lakehouse.storage.keyed_reader import KeyedReader
from lakehouse.storage.row_index import RowIndex
from lakehouse.storage.row_keys import KEY, keyed
from lakehouse.stream.advance import Take
from lakehouse.stream.keyed import few_at_once, is_short, swap, whole
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.table_steps import Due, Moved
from lakehouse.transform import keeping, plan

_log = logging.getLogger(__name__)

_MANY = 20_000  # groups that changed in a step; with more the table is computed whole
_COMPARED = 20_000  # rows, of which those that did not change are found, and not written again
_ROW = "_row"  # stands for a row, as `_key` does for its group

Write = Callable[[Path, str, Mapping[str, Any]], int]


def group_steps(run: StreamRun) -> tuple[Take, Due, Due]:
    """Steps that compute again what belongs to the rows that came and went."""
    groups = _Groups(run)
    if not groups.uses.columns:
        message = (
            f"table={run.table.name}: no column ties its rows to rows of {', '.join(run.plan.followed)}, so each step computes "
            "it whole; that is right while these are small; else split it, with a keyed table by what it joins before it"
        )
        _log.warning(message)

    def quiet_due(offset: Mapping[str, Any]) -> bool:
        complete, before = run.complete(offset), next(run.commit_log.by_stream(), None)
        return bool(complete and before and before.frontier and complete > before.frontier)

    def step(moved: Mapping[str, Moved], batch_id: int, log: BatchLog) -> None:
        before = run.commit_log.before(run.generation, batch_id)
        start = (before and before.frontier) or run.start
        ahead = max(start, run.complete(log.inputs) or start)
        inputs = {"tables": log.inputs, "references": run.pinned}
        known: dict[str, Any] = {"inputs": inputs, "watermark": ahead, "frontier": ahead}
        if log.quiet is not None:
            run.skip(batch_id, before, **known)
            return
        with groups.change(moved, batch_id) as (written, write):
            run.keep(write, batch_id, arrived=log.rows or 0, written=written, **known)

    return step, lambda offset: True, quiet_due


class _Groups:
    """How the steps of one table read their inputs, and what of the table they write."""

    def __init__(self, run: StreamRun) -> None:
        self.run, lake = run, run.lake
        self.references = run.references()
        self.uses = keeping.group_uses(lake, run.plan)
        self.keys = keeping.key_columns(lake, run.table)
        self.tables = {name: lake.catalog.table(name) for name in run.plan.followed}
        kept = {name: table for name, table in self.tables.items() if table.keeps}
        self.readers = {name: KeyedReader(lake.path(table)) for name, table in kept.items()}
        self.indices: dict[str, RowIndex] = {}
        self.found_by = {name: keeping.key_columns(lake, table) for name, table in kept.items()}

    @contextmanager
    def change(
        self, moved: Mapping[str, Moved], batch_id: int
    ) -> Iterator[tuple[int, Write | None]]:
        """How many rows a step brings, and what writes them; nothing does if it changes none."""
        run = self.run
        if batch_id <= run.committed:  # it is in the table, and lacks its line in the commit log
            noted = delta_writer.noted(run.lake.path(run.table), run.app(batch_id), batch_id)
            yield (noted or {}).get("written", 0), _written_before
            return
        touched = self._touched(moved) if batch_id else None
        if touched is not None and not touched.num_rows:
            yield 0, None
            return
        rows = keyed(self._computed(moved, touched), self.keys)
        if set(self.keys) != set(run.table.keys):
            rows = rows.withColumn(_ROW, row_keys.column(rows.schema, run.table.keys))
        rows = rows.persist()
        try:
            yield self._writing(rows, touched, batch_id)
        finally:
            rows.unpersist()

    def _touched(self, moved: Mapping[str, Moved]) -> pa.Table | None:
        """The groups that have a row that came or went, each once; None if they are too many, or not known."""
        columns, of = self.uses.columns, self.uses.of
        if not columns or any(each.since is None or each.since < 0 for each in moved.values()):
            return None
        found = []
        try:
            for name, each in moved.items():
                rows = self._changed(name, each) if each.files else None
                if rows is not None:
                    found += [rows.select(*_named(use, columns)) for use in of[name]]
            if not found:
                return pa.table({name: [] for name in columns})
            several = reduce(DataFrame.union, found).distinct().limit(_MANY + 1)
            groups = in_memory(several)
        except (CommitError, FileNotFoundError) as err:
            _log.warning(
                f"table={self.run.table.name}: what it read last is not there any more ({err}), so it is computed whole"
            )
            return None
        return groups if groups is not None and groups.num_rows <= _MANY else None

    def _changed(self, name: str, moved: Moved) -> DataFrame | None:
        """The rows of an input that came or went, with those columns at least by which they belong to groups."""
        lake, table = self.run.lake, self.tables[name]
        if (reader := self.readers.get(name)) is None:
            return lake.rows_of(table, moved.files, plan.stored_schema(lake, table))
        assert moved.since is not None
        reader.move(moved.since)
        changed = reader.changed(moved.until)
        if not changed.num_rows:
            return None
        rows = in_spark(lake.spark, changed)
        # one that only moved to another file is there twice
        wanted = sorted({column for use in self.uses.of[name] for column in use})
        once = rows.groupBy(*row_hashes(rows)).agg(
            F.count(F.lit(1)).alias("_times"), *(F.first(column).alias(column) for column in wanted)
        )
        return once.where("_times = 1")

    def _computed(self, moved: Mapping[str, Moved], touched: pa.Table | None) -> DataFrame:
        """What the function makes of the inputs at their versions: of the groups that were touched, or all."""
        few = None if touched is None else in_spark(self.run.lake.spark, touched)
        inputs = {name: self._input(name, each.until, touched, few) for name, each in moved.items()}
        rows = self.run.plan.kept(inputs, self.references)
        return rows if few is None else _of_groups(rows, few, [self.uses.columns])

    def _input(
        self, name: str, version: int, touched: pa.Table | None, few: DataFrame | None
    ) -> DataFrame:
        lake, table = self.run.lake, self.tables[name]
        if touched is None or few is None:
            return whole(lake, table, version)
        uses, reader = self.uses.of[name], self.readers.get(name)
        if reader is not None and len(uses) == 1 and set(uses[0]) == set(self.found_by[name]):
            reader.move(version)
            named = few.select(*_named(self.uses.columns, uses[0]))
            keys = keyed(named, self.found_by[name]).select(KEY).toArrow()[KEY]
            found, schema = reader.rows_of(keys), plan.stored_schema(lake, table)
            if found is None:
                return lake.spark.createDataFrame([], schema)
            return in_spark(lake.spark, found.select(schema.names))
        found = self._found(name, version, touched) if reader is None else None
        rows = whole(lake, table, version) if found is None else found
        return _of_groups(rows, few, uses, self.uses.columns)

    def _found(self, name: str, version: int, groups: pa.Table) -> DataFrame | None:
        """The rows of an input without keys that may belong to the groups; None if they are to be looked for in all of it."""
        lake, table, uses = self.run.lake, self.tables[name], self.uses.of[name]
        if version < 0 or not row_index.can_index(groups.schema.types):
            return None
        index = self.indices.setdefault(name, RowIndex(uses))
        path, most = lake.path(table), few_at_once(self.run)
        files = [delta_log.data_file(path, file) for file in log_state.files_at(path, version)]
        rows = index.rows_of(files, groups, most)
        if rows is None:
            return None
        schema = StructType([f for f in plan.stored_schema(lake, table) if f.name != PARTITION])
        if not rows.num_rows:
            return lake.spark.createDataFrame([], schema)
        return lake.spark.createDataFrame(rows.select(schema.names), schema)

    def _writing(
        self, rows: DataFrame, touched: pa.Table | None, batch_id: int
    ) -> tuple[int, Write | None]:
        lake, table = self.run.lake, self.run.table
        count, path = rows.count(), lake.path(table)
        self._check_keys(rows, count)
        rows = rows.drop(_ROW).select(*plan.stored_schema(lake, table).names)
        keys = (
            touched and keyed(in_spark(lake.spark, touched), self.keys).select(KEY).toArrow()[KEY]
        )
        known = log_state.rows(path) if batch_id else 0
        few = in_memory(rows) if batch_id and is_short(self.run, path, count) else None
        if few is not None and (keys is not None or known <= few_at_once(self.run)):
            there = (
                keyed_files.rows_of(path, keys) if keys is not None else in_memory(lake.read(table))
            )
            different = _different(few, there)
            if not len(different):
                return 0, None
            new = few.filter(pc.is_in(few[KEY], value_set=different))

            def upsert(path: Path, app: str, metadata: Mapping[str, Any]) -> int:
                return delta_writer.upsert(
                    new, path, app, batch_id, metadata, pa.chunked_array([different])
                )

            return new.num_rows, upsert

        def replace(path: Path, app: str, metadata: Mapping[str, Any]) -> int:
            others = rows
            if keys is not None:
                gone = in_spark(lake.spark, pa.table({KEY: keys}))
                others = (
                    lake.read(table).join(F.broadcast(gone), KEY, "left_anti").unionByName(rows)
                )
            return swap(self.run, others, count, path, app, batch_id, metadata, self.keys)

        return count, replace

    def _check_keys(self, rows: DataFrame, count: int) -> None:
        """Raises JobError for two rows of one key."""
        row = _ROW if _ROW in rows.columns else KEY
        names = self.run.table.keys
        if rows.select(row).distinct().count() == count:
            return
        twice = rows.groupBy(row).agg(F.count(F.lit(1)).alias("_n"), *map(F.first, names))
        example = twice.where("_n > 1").drop(row).head()
        assert example is not None
        shown = ", ".join(f"{name}={value}" for name, value in zip(names, example[1:], strict=True))
        raise JobError(
            f"table={self.run.table.name}, {shown}: its function returned {example['_n']} rows of this key, and keeps='latest' "
            "keeps one; group by the keys, or name in keys= all columns by which its rows differ"
        )


def _written_before(path: Path, app: str, metadata: Mapping[str, Any]) -> int:
    raise AssertionError(f"{path.name}, {app}: it is written already")


def _named(columns: Sequence[str], names: Sequence[str]) -> list[Column]:
    return [F.col(c).alias(n) for c, n in zip(columns, names, strict=True)]


def _of_groups(
    rows: DataFrame,
    few: DataFrame,
    uses: Sequence[Sequence[str]],
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """The rows that belong to one of the `few` groups, by any of the `uses` of their columns."""
    groups = few.select(*(F.col(c).alias(f"_group_{n}") for n, c in enumerate(few.columns)))
    places = {name: n for n, name in enumerate(few.columns)}
    same = [
        reduce(
            and_,
            (
                F.col(column).eqNullSafe(F.col(f"_group_{places[group]}"))
                for column, group in zip(use, columns or use, strict=True)
            ),
        )
        for use in uses
    ]
    return rows.join(F.broadcast(groups), reduce(or_, same), "left_semi")


def _different(new: pa.Table, there: pa.Table | None) -> pa.Array:
    """The keys whose rows are others now, or gone; all of them where it would take longer to find out."""
    if there is None:
        return pc.unique(new[KEY].combine_chunks())
    if new.num_rows + there.num_rows > _COMPARED:
        both = pa.chunked_array([*new[KEY].chunks, *there[KEY].chunks])
        return pc.unique(both.combine_chunks())
    now, before = _by_key(new), _by_key(there.select(new.column_names))
    keys = [key for key in now.keys() | before.keys() if now.get(key) != before.get(key)]
    return pa.array(keys, pa.binary())


def _by_key(rows: pa.Table) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for row in rows.to_pylist():
        found.setdefault(row[KEY], []).append(repr(row))
    return {key: sorted(each) for key, each in found.items()}
