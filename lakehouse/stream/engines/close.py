"""The steps of a table whose ranges the stream computes as they close, by the batch function (`strategy.closes_ranges`)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakehouse.batch import compute, kept_states
from lakehouse.declare.columns import WINDOW
from lakehouse.ranges import Range
from lakehouse.runtime.prepared_plans import Moment
from lakehouse.storage.delta import delta_writer
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.session import nullable
from lakehouse.stream import late_counts
from lakehouse.stream.advance import Take
from lakehouse.stream.engines.table_steps import Due, InputRows
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.prepared_steps import Few
from lakehouse.transform import ranges_of


def close_steps(run: StreamRun) -> tuple[Take, Due, Due]:
    """Returns steps that run the batch function, each on the range that it closes (`strategy.closes_ranges`).

    The range is complete: rows still to come that fall into it are late.
    """
    session, table = run.session, run.table
    references, versioned_inputs = run.references(), session.catalog.versioned_inputs(table)
    by_frontiers = session.catalog.follows_frontiers(table)
    if table.ttl:
        run.prepared.refuse("range", "Spark reads and keeps the states of keys in files")
    if versioned_inputs:
        run.prepared.refuse("range", "each step reads another version of a versioned table")

    def ahead_of(start: datetime, complete: datetime) -> datetime:
        # a row finds its valid version only once the versioned table is as far, so its frontier is read before its rows
        for versioned in versioned_inputs:
            complete = min(complete, frontier(session.settings, versioned) or start)
        return max(start, complete - table.after)

    def closes(start: datetime, ahead: datetime) -> bool:
        return ahead > start and ranges_of.closes(table, Range(start, ahead))

    def due(offset: Mapping[str, Any]) -> bool:
        # the line of the commit that was just seen may be yet to come
        complete = run.complete(offset)
        start = run.frontier_after(next(run.commit_log.by_stream(), None))
        return complete is not None and closes(start, ahead_of(start, complete))

    def step(rows: Mapping[str, InputRows], batch_id: int, log: BatchLog) -> None:
        before = run.commit_log.before(run.generation, batch_id)
        start = run.frontier_after(before)
        counted = cache(partial(late_counts.counted, run, rows if log.quiet is None else {}))
        complete = run.complete(log.inputs)
        if complete is None and not by_frontiers:
            complete = counted()["watermark"]
        ahead = ahead_of(start, complete or start)
        # a replayed batch keeps the frontier that it has written: the stream may be further by now
        ahead = run.noted_frontier(batch_id, start) or ahead
        read = {
            versioned.name: delta_writer.version(session.path(versioned))
            for versioned in versioned_inputs
        }
        inputs = {"tables": log.inputs, "references": run.pinned} | (
            {"versioned tables": read} if read else {}
        )
        note: dict[str, Any] = {"watermark": start, "frontier": ahead, "inputs": inputs}
        if not closes(start, ahead):
            run.skip(batch_id, before, **counted() | note)
            return
        span = Range(start, ahead)
        new = batch_id > run.committed
        if few := _prepared_range(run, references, span) if new else None:
            run.write(few, batch_id, lambda _: counted() | note, counted_later=True, **note)
            return
        closed = compute.closing(session, run.plan, span, references | session.references(read))
        note["inputs"] = {**inputs, **closed.inputs}
        with kept_states.keeping(session, closed.begun):
            # counted after the write, so that the rows can be read sooner
            run.write(
                closed.judged,
                batch_id,
                lambda _: counted() | note,
                rows=log.rows,
                counted_later=True,
                **note,
            )

    return step, due, due


def _prepared_range(run: StreamRun, references: Mapping[str, DataFrame], span: Range) -> Few | None:
    """Returns the rows of a range that closes, from its files by the prepared plan, if there is one and their rows are few."""
    session, table, most = run.session, run.table, run.session.settings.step_rows
    tables = {name: session.catalog.table(name) for name in run.plan.timed}
    columns = {name: nullable(run.plan.inputs[name].schema) for name in tables}

    def prepared(
        inputs: Mapping[str, DataFrame], instants: Sequence[datetime | Moment], _: object
    ) -> DataFrame:
        return run.due(compute.closing_prepared(run.plan, inputs, references, *instants))

    @cache
    def few_from(context: Range) -> Few | None:
        def rows() -> dict[str, pa.Table | None]:
            return {
                name: session.few_spanning(input_, context, columns[name], most)
                for name, input_ in tables.items()
            }

        return run.prepared.few(prepared, rows, columns, (span.start, span.end), name="range")

    def earliest_start(context: Range) -> datetime | None:
        few = few_from(context)
        return pc.min(pc.struct_field(few.rows[WINDOW], "start")).as_py() if few else None

    context = ranges_of.context(span, table)
    if table.window and table.window.kind == "session":
        begins = compute.first(session, table)
        context = compute.holding_whole_sessions(context, table.window.size, begins, earliest_start)
    return few_from(context)
