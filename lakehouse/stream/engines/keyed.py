"""The stream of a keyed or versioned table: one row for each key, or for each version of it, one commit a micro-batch.

The first micro-batch of a generation reads all of the ingest table, and Spark writes the result. Later
ones write what they touch (`storage.keyed.keyed_files`); after one that touches very many keys, the
table is written whole as well. A table of versions, or of sums, counts and bounds, is computed from the
rows that it holds of the touched keys, and the new input. Spark keeps the state of any other aggregate.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from lakehouse.declare.columns import quoted
from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.ranges import Range, utc
from lakehouse.storage.delta import delta_writer, log_state, python_years
from lakehouse.storage.delta.arrow import in_memory, in_spark
from lakehouse.storage.delta.row_keys import KEY, keyed
from lakehouse.storage.keyed import keyed_files
from lakehouse.storage.session import Session
from lakehouse.stream.advance import Take
from lakehouse.stream.engines.table_steps import Due, InputRows, frames
from lakehouse.stream.input_frontier import complete_at
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.prepared_steps import Few
from lakehouse.transform import counting, keeping, plan, versions
from lakehouse.transform.checks import years

Batches = Callable[[DataFrame, int], None]
_AT_ONCE = 10  # times `step_rows`, in rows to write; for 200,000 the job holds some 50 MB, and writes them in a second


def state(run: StreamRun) -> tuple[DataFrame, Batches]:
    """Returns the rows of a query and its micro-batches, which hold the rows of the touched keys as they are now."""
    stream = {run.plan.driving: run.stream()}
    rows = run.plan.kept(stream, run.references(), f"late_filter_{run.table.name}")

    def batches(batch: DataFrame, batch_id: int) -> None:
        inputs = _inputs(run, run.log(batch_id))
        batch = run.held(batch)
        try:
            written = batch.count()
            reached = _reached(run, batch_id, run.late_filter_counts())
            complete = complete_at(run, inputs["tables"][run.plan.driving]) or reached["frontier"]
            reached["frontier"] = max(reached["frontier"], complete)

            def write(path: Path, app: str, metadata: delta_writer.Metadata) -> int:
                few = (
                    in_memory(keyed(batch, run.table.keys))
                    if batch_id and is_short(run, path, written)
                    else None
                )
                if few is not None:
                    return upsert(run, few, path, app, batch_id, metadata, few[KEY])
                others = (
                    versions.of_keys(_there(run), batch, run.table.keys, others=True)
                    if batch_id
                    else None
                )
                return swap(
                    run,
                    batch if others is None else others.unionByName(batch),
                    written,
                    path,
                    app,
                    batch_id,
                    metadata,
                )

            run.keep(
                write if written or not batch_id else None,
                batch_id,
                inputs=inputs,
                written=written,
                **reached,
            )
        finally:
            batch.unpersist()

    return rows, batches


def version_steps(run: StreamRun) -> tuple[Take, Due, Due]:
    """Returns steps over the ingest table's rows, which add to the versions of the keys in them."""
    table = run.table

    def of_keys(rows: DataFrame) -> DataFrame:
        return versions.versions(rows, table.keys)

    def whole(new: DataFrame, *, first: bool) -> DataFrame:
        return of_keys(new) if first else versions.changed(_there(run), new, table.keys)

    return _steps(run, of_keys, whole)


def merge_steps(run: StreamRun) -> tuple[Take, Due, Due]:
    """Returns steps over the ingest table's rows, whose sums, counts and bounds are merged with those that the table holds."""
    table = run.table
    hows = keeping.merging(run.plan)
    assert hows is not None, table.name
    types = {f.name: f.dataType for f in run.plan.schema}
    # in the type of the table's column: a sum of decimals has ten digits more than they have
    merged = [_call(how, name).cast(types[name]).alias(name) for name, how in hows.items() if how]

    def of_keys(rows: DataFrame) -> DataFrame:
        by = [column for column in (KEY, *table.keys) if column in rows.columns]
        return rows.groupBy(*map(quoted, by)).agg(*merged)

    def whole(new: DataFrame, *, first: bool) -> DataFrame:
        return (
            new
            if first
            else of_keys(_there(run).select(*map(quoted, new.columns)).unionByName(new))
        )

    return _steps(run, of_keys, whole)


def _steps(
    run: StreamRun,
    of_keys: Callable[[DataFrame], DataFrame],
    whole: Callable[..., DataFrame],
) -> tuple[Take, Due, Due]:
    """Returns steps over new rows: what the function makes of these, with what the table holds of their keys.

    `of_keys`: makes the table's rows of these keys from both. `whole`: makes the table from new rows (and whether they are
    the `first`).
    """
    references = run.references()

    def new_rows(rows: Mapping[str, DataFrame], _: object, outcome: str | Observation) -> DataFrame:
        return keyed(run.plan.kept(rows, references, outcome), run.table.keys)

    def rows_of_keys(both: Mapping[str, DataFrame], *_: object) -> DataFrame:
        return of_keys(both["both"]).select(*map(quoted, _columns(run)))

    def few_new(rows: Mapping[str, InputRows]) -> Few | None:
        few = run.prepared.few(
            new_rows,
            lambda: {name: batch.here for name, batch in rows.items()},
            {name: batch.columns for name, batch in rows.items()},
            name="new rows",
        )
        # a join with an empty side reads no row, and counts none
        return few if few and few.observed.get("arrived") else None

    def step(rows: Mapping[str, InputRows], batch_id: int, log: BatchLog) -> None:
        inputs = _inputs(run, log)
        if log.quiet is not None:
            before = run.commit_log.before(run.generation, batch_id)
            ahead = run.complete(log.inputs)
            run.skip(batch_id, before, inputs=inputs, watermark=ahead, frontier=ahead)
            return
        late_filter = Observation()
        short = batch_id and is_short(run, run.session.path(run.table), log.rows)
        prepared = few_new(rows) if short else None
        few = prepared.rows if prepared else None
        if few is None:
            new = run.plan.kept(frames(rows), references, late_filter)
            few = in_memory(keyed(new, run.table.keys)) if short else None
        held = new.persist() if few is None else None
        try:
            written = new.count() if few is None else few.num_rows

            def write(path: Path, app: str, metadata: delta_writer.Metadata) -> int:
                if few is None:
                    changes = new
                else:
                    both = _with_stored(path, few)
                    schema = from_arrow_schema(both.schema, prefer_timestamp_ntz=True)
                    made = run.prepared.few(
                        rows_of_keys, lambda: {"both": both}, {"both": schema}, name="keys"
                    )
                    upserted = made.rows if made else in_memory(rows_of_keys(_in_one(run, both)))
                    if upserted is not None:
                        return upsert(run, upserted, path, app, batch_id, metadata, few[KEY])
                    changes = in_spark(run.session.spark, few).drop(KEY)
                every = whole(changes, first=not batch_id)
                return swap(run, every, written, path, app, batch_id, metadata)

            seen = (
                prepared.observed
                if prepared
                else run.plan.late_filter_counts(late_filter, rows[run.plan.driving].frame)
            )
            reached = _reached(run, batch_id, seen)
            # rows that come later are valid from later on
            complete = run.complete(log.inputs) or reached["frontier"]
            reached["frontier"] = max(reached["frontier"], complete)
            writes = write if written or not batch_id else None
            run.keep(writes, batch_id, inputs=inputs, written=written, **reached)
        finally:
            if held is not None:
                held.unpersist()

    return step, lambda offset: True, quiet_due(run)


def _call(function: str, column: str) -> Column:
    return F.expr(f"{function}({quoted(column)})")


def _with_stored(path: Path, few: pa.Table) -> pa.Table:
    """Returns these rows, and those that the table holds of their keys."""
    stored = keyed_files.rows_of(path, few[KEY])
    if stored is not None:
        few = pa.concat_tables([few, stored.select(few.column_names).cast(few.schema)])
    return few


def _in_one(run: StreamRun, both: pa.Table) -> dict[str, DataFrame]:
    """Returns the rows in one partition: Spark needs no exchange to bring keys together."""
    return {"both": in_spark(run.session.spark, both).coalesce(1)}


def _columns(run: StreamRun) -> Sequence[str]:
    return run.plan.schema.names


def quiet_due(run: StreamRun) -> Due:
    """Returns a check that the inputs have gone on in time beyond the table."""

    def due(offset: Mapping[str, Any]) -> bool:
        complete, before = run.complete(offset), next(run.commit_log.by_stream(), None)
        return bool(complete and before and before.frontier and complete > before.frontier)

    return due


def few_at_once(run: StreamRun) -> int:
    """Returns how many rows the job itself writes at most."""
    return _AT_ONCE * run.session.settings.step_rows


def is_short(run: StreamRun, path: Path, rows: int | None) -> bool:
    """Returns True if the job itself writes so many rows, into a table in which every row has its key."""
    return rows is not None and rows <= few_at_once(run) and keyed_files.can_upsert(path)


def upsert(
    run: StreamRun,
    rows: pa.Table,
    path: Path,
    app: str,
    batch_id: int,
    metadata: delta_writer.Metadata,
    touched: pa.ChunkedArray,
) -> int:
    """Writes the rows in place of those that the table has of the `touched` keys."""
    table = run.table
    python_years.check(rows, f"table={table.name}", JobError, years.REMEDY, table.keys)
    return delta_writer.upsert(rows, path, app, batch_id, metadata, touched)


def swap(
    run: StreamRun,
    rows: DataFrame,
    brought: int,
    path: Path,
    app: str,
    batch_id: int,
    metadata: delta_writer.Metadata,
    keys: Sequence[str] = (),
) -> int:
    """Makes Spark write the whole table, whose rows are found by these columns (default: its keys)."""
    rows_before = log_state.rows(path) if batch_id else 0
    files = max(1, math.ceil((rows_before + brought) / keyed_files.LARGE))
    keys = keys or run.table.keys
    rows = keyed(rows, keys).select(*map(quoted, _columns(run)))
    rows = years.refused(rows, run.table.name, run.table.keys)
    return delta_writer.swap(rows, path, app, batch_id, metadata, files, keys)


def recomputed(
    session: Session,
    table: Table,
    inputs: Mapping[str, int],
    references: dict[str, int],
    frontier: datetime,
) -> DataFrame:
    """Returns a keyed or versioned table by all rows of its inputs, at these versions of them and of its references.

    Only rows that count at the frontier are used, if the frontier decides which count.
    """
    span = counting.span_of(table, frontier)
    rows = {
        name: whole(session, session.catalog.table(name), at, span) for name, at in inputs.items()
    }
    kept = plan.plan_of(session, table).kept(rows, session.references(references))
    return versions.versions(kept, table.keys) if table.kind.keeps_versions else kept


def whole(session: Session, table: Table, version: int, span: Range | None = None) -> DataFrame:
    """Returns all rows of an input at a version; none if nothing of it was read yet.

    `span`: the event times of the rows that count, in an input with event time (`transform.counting`).
    """
    if version < 0:
        return session.spark.createDataFrame([], plan.plan_of(session, table).schema)
    if span is None or table.kind.is_upserted:
        return session.references({table.name: version})[table.name]
    rows = session.spanning(table, span, version)
    return counting.counted(rows, table, session.catalog.event_time(table), span)


def _there(run: StreamRun) -> DataFrame:
    return run.session.read(run.table).drop(KEY)


def _inputs(run: StreamRun, log: BatchLog) -> dict[str, Any]:
    return {"tables": log.inputs, "references": run.pinned}


def _reached(run: StreamRun, batch_id: int, seen: Mapping[str, Any]) -> dict[str, Any]:
    before = run.commit_log.before(run.generation, batch_id)
    start = run.frontier_after(before)
    ahead = utc(seen["watermark"]) if seen["watermark"] else start
    return {
        "arrived": seen["arrived"],
        "late": seen["late"],
        "watermark": ahead,
        "frontier": max(start, ahead),
    }


def different(new: pa.Table, there: pa.Table | None, most: int) -> pa.Array:
    """Returns the keys whose rows changed or are gone; all keys if the rows are more than `most`, or Python cannot read them."""
    if there is None:
        return pc.unique(new[KEY].combine_chunks())
    readable = python_years.are_in_python(new) and python_years.are_in_python(there)
    if new.num_rows + there.num_rows > most or not readable:
        both = pa.chunked_array([*new[KEY].chunks, *there[KEY].chunks])
        return pc.unique(both.combine_chunks())
    now, before = _by_key(new), _by_key(there.select(new.column_names))
    keys = [key for key in now.keys() | before.keys() if now.get(key) != before.get(key)]
    return pa.array(keys, pa.binary())


def _by_key(rows: pa.Table) -> dict[bytes, list[str]]:
    row_texts: dict[bytes, list[str]] = {}
    for row in rows.to_pylist():
        row_texts.setdefault(row[KEY], []).append(repr(row))
    return {key: sorted(each) for key, each in row_texts.items()}
