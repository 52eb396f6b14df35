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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.errors import CommitError
from lakehouse.ranges import Range
from lakehouse.storage.delta import delta_log, delta_writer, row_keys
from lakehouse.storage.delta.arrow import in_memory, in_spark
from lakehouse.storage.delta.digest import row_hashes
from lakehouse.storage.delta.row_keys import KEY, keyed
from lakehouse.storage.keyed import keyed_files
from lakehouse.storage.session import nullable
from lakehouse.stream.advance import Take
from lakehouse.stream.engines.counted_rows import Turn
from lakehouse.stream.engines.group_reads import GroupReads, key_in, turned_of
from lakehouse.stream.engines.group_writes import ROW, GroupWrites, Write
from lakehouse.stream.engines.keyed import quiet_due, upsert, whole
from lakehouse.stream.engines.sums import Sums
from lakehouse.stream.engines.table_steps import Due, Moved
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.transform import counting, keeping
from lakehouse.transform.analysis.groups import belonging, values

_log = logging.getLogger(__name__)

_GROUPS = "groups of rows"  # an input besides tables, whose names have no space
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


class _Groups:
    """The groups that one table's steps touch, and their rows."""

    def __init__(self, run: StreamRun) -> None:
        self.run, session = run, run.session
        self.references, self.pinned = run.references(), run.pinned
        self.refreshed = [t for t in session.catalog.pinned_inputs(run.table) if t.refresh]
        self.keys = keeping.key_columns(run.plan)
        self.reads, self.writes = GroupReads(run), GroupWrites(run, self.keys)
        self.uses, self.tables = self.reads.uses, self.reads.tables
        self.counted = self.reads.counted
        self.sums = self._sums()

    def _present(self) -> dict[str, int]:
        path = self.run.session.path
        return self.pinned | {t.name: delta_log.latest(path(t)) for t in self.refreshed}

    @property
    def _versions(self) -> tuple[tuple[str, int], ...]:
        """The versions of reference tables, with which a plan is made."""
        return tuple(self.pinned.items())

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
        rows = self._whole(moved, span) if groups is None else self._rows(moved, groups, span)
        if batch_id and (few := self.writes.few(rows, groups)) is not None:
            yield self.writes.upserting(few, groups, batch_id)
            return
        if isinstance(rows, pa.Table):
            rows = in_spark(run.session.spark, rows)
        rows = rows.persist()
        try:
            yield self.writes.replacing(rows, groups, batch_id)
        finally:
            rows.unpersist()

    def _sums(self) -> Sums | None:
        added = keeping.adding(self.run.plan)
        if added is None or set(self.keys) != set(self.run.table.keys):
            return None
        (reader,) = self.reads.readers.values()
        return Sums(self.run, reader, added)

    def _added(self, moved: Mapping[str, Moved], batch_id: int) -> tuple[int, Write | None] | None:
        """Returns the same as `change`, by what came and what went alone; None if that is not enough."""
        if self.sums is None:
            return None
        differences = self.sums.step(moved[self.sums.name], self.references, self._versions)
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
                    _, whole = self.writes.replacing(self._whole(moved, None), None, batch_id)
                    return whole(path, app, metadata)
                new = pa.concat_tables([new, again.select(columns).cast(new.schema)])
            return upsert(self.run, new, path, app, batch_id, metadata, differences.keys)

        return len(differences.keys), write

    def _again(self, moved: Mapping[str, Moved], some: pa.Table) -> pa.Table | None:
        """Returns the rows of some groups, from those of the input that belong to them; None if all must be read for that."""
        if not self.uses.columns:
            return None
        groups: pa.Table | None = some
        if self.reads.by_key:
            few = in_spark(self.run.session.spark, some.select(list(self.uses.columns)))
            groups = in_memory(self._with_keys(few))
        if groups is None:
            return None
        rows = self._rows(moved, groups, None)
        return rows if isinstance(rows, pa.Table) else in_memory(rows)

    def _touched(
        self, moved: Mapping[str, Moved], span: Range | None, turn: Turn | None
    ) -> pa.Table | None:
        """Returns once each group with a row that came, went or turned; None if they are too many, or not known.

        Each has its `_key`, and its key in those inputs where it is found by that.
        """
        columns = self.uses.columns
        known = columns or self.counted
        if not known or any(each.since is None or each.since < 0 for each in moved.values()):
            return None
        reads = self.reads
        names = [name for name in moved if not columns or name in self.uses.of]
        counted = [name for name in names if self.counted and name in self.counted.inputs]
        try:
            changed = {name: reads.changed(name, moved[name], span) for name in names}
            turned = {turned_of(n): reads.turned(n, moved[n].until, turn) for n in counted}
            if any(rows is None for rows in turned.values()):
                return None
            changed |= turned
            some = {n: rows for n, rows in changed.items() if rows is None or rows.num_rows}
            if not some or not columns:
                return None if some else pa.table({name: [] for name in columns})
            schemas = {name: reads.columns_of(name) for name in names}
            schemas |= {turned_of(n): reads.columns_of(n, reads.belonging_by(n)) for n in counted}
            made = self.run.prepared.few(
                self._groups_of, lambda: changed, schemas, name="groups that changed"
            )
            if made:
                groups: pa.Table | None = made.rows
            else:
                frames = {
                    name: reads.changed_frame(name, moved[name], span)
                    if rows is None
                    else in_spark(self.run.session.spark, rows)
                    for name, rows in some.items()
                }
                groups = in_memory(self._groups_of(frames).limit(_MANY + 1))
        except (CommitError, FileNotFoundError) as err:
            _log.warning(
                f"table={self.run.table.name}: what it read last is not there any more ({err}), so it is computed whole"
            )
            return None
        return groups if groups is not None and groups.num_rows <= _MANY else None

    def _groups_of(self, changed: Mapping[str, DataFrame], *_: object) -> DataFrame:
        """Returns once each group of the rows that came or went (by input) or turned (`turned_of`), with its keys."""
        parts = []
        for name, uses in self.uses.of.items():
            columns = sorted(self.reads.belonging_by(name))
            rows, turned = changed.get(name), changed.get(turned_of(name))
            if rows is not None and name in self.reads.readers:
                # a row that only moved to another file is there twice
                rows = rows.groupBy(*row_hashes(rows)).agg(
                    F.count(F.lit(1)).alias("_times"), *(F.min(c).alias(c) for c in columns)
                )
                rows = rows.where("_times = 1")
            parts += [
                part.select(*values(use, self.uses.columns))
                for part in (rows, turned)
                if part is not None
                for use in uses
            ]
        return self._with_keys(reduce(DataFrame.union, parts).distinct())

    def _with_keys(self, groups: DataFrame) -> DataFrame:
        """Returns the groups, each with its `_key`, and its key in those inputs where it is found by that."""
        by = {KEY: self.uses.columns} | {key_in(name): by for name, by in self.reads.by_key.items()}
        keys = {name: row_keys.column(groups.schema, by) for name, by in by.items()}
        return groups.withColumns(keys)

    def _whole(self, moved: Mapping[str, Moved], span: Range | None) -> DataFrame:
        """Returns all that the function makes of the inputs at their versions."""
        session = self.run.session
        inputs = {n: whole(session, self.tables[n], each.until, span) for n, each in moved.items()}
        return self._keyed(self.run.plan.kept(inputs, self.references))

    def _rows(
        self, moved: Mapping[str, Moved], groups: pa.Table, span: Range | None
    ) -> DataFrame | pa.Table:
        """Returns what the function makes of the inputs' rows that belong to the groups: by the prepared plan if there is one."""
        run, session = self.run, self.run.session
        found = {
            name: self.reads.found(name, each.until, groups, span) for name, each in moved.items()
        }
        few = groups.select(list(self.uses.columns))
        columns = {name: self.reads.columns_of(name) for name in found}
        types = {field.name: field for field in nullable(run.plan.schema)}
        made = run.prepared.few(
            self._of_groups,
            lambda: {**found, _GROUPS: few},
            {**columns, _GROUPS: StructType([types[name] for name in self.uses.columns])},
            name="rows",
            variant=self._versions,
        )
        if made:
            return made.rows
        frames = {
            name: whole(session, self.tables[name], moved[name].until, span)
            if rows is None
            else in_spark(session.spark, rows, columns[name])
            for name, rows in found.items()
        }
        return self._of_groups(frames | {_GROUPS: F.broadcast(in_spark(session.spark, few))})

    def _of_groups(self, inputs: Mapping[str, DataFrame], *_: object) -> DataFrame:
        """Returns the rows of the groups, one of the inputs, made of the inputs' rows that may belong to them."""
        columns, few = list(self.uses.columns), inputs[_GROUPS]
        of_groups = {
            name: rows
            if name in self.reads.by_key
            else belonging(rows, few, self.uses.of[name], columns)
            for name, rows in inputs.items()
            if name != _GROUPS
        }
        made = self.run.plan.kept(of_groups, self.references)
        return self._keyed(belonging(made, few, [columns], columns))

    def _keyed(self, rows: DataFrame) -> DataFrame:
        """Returns the rows with the `_key` of their group, and with `_row` if that does not stand for the row."""
        rows, keys = keyed(rows, self.keys), self.run.table.keys
        if set(self.keys) == set(keys):
            return rows
        return rows.withColumn(ROW, row_keys.column(rows.schema, keys))


def _written_before(path: Path, app: str, metadata: delta_writer.Metadata) -> int:
    raise AssertionError(f"{path.name}, {app}: it is written already")
