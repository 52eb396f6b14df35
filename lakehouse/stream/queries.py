"""The stream: one query, of steps or of Spark's, fills one table.

What its micro-batches hold, by kind of table.

Which of the two a table has, `strategy` decides; how a micro-batch is written, `micro_batch` says.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from lakehouse import ranges
from lakehouse.batch import compute, kept_states, refreshed
from lakehouse.batch.lookups import StepLookups
from lakehouse.declare.table import Table
from lakehouse.declare.windows import Duplicates
from lakehouse.durations import spark_interval
from lakehouse.ranges import BEGINNING, Range
from lakehouse.storage.delta import delta_log, delta_writer
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import declared_state
from lakehouse.storage.position.checkpoints import began
from lakehouse.storage.position.reference_versions import SEEN
from lakehouse.storage.session import Session
from lakehouse.stream import generations, handover, late_counts
from lakehouse.stream.advance import StepInput, StepLoop, Take
from lakehouse.stream.engines import groups, ingest, keyed
from lakehouse.stream.engines.refreshed_inputs import RefreshedInputs
from lakehouse.stream.engines.table_steps import ChangeInput, Due, InputRows, TableInput, frames
from lakehouse.stream.input_frontier import InputFrontier
from lakehouse.stream.micro_batch import BatchLog, StreamRun, stream_run
from lakehouse.stream.prepared_steps import Few
from lakehouse.stream.strategy import Strategy, strategy
from lakehouse.transform import creation, lateness, observing, ranges_of

_log = logging.getLogger(__name__)

_INSTANT = timedelta(microseconds=1)
_EXCLUDED = "spark.sql.optimizer.excludedRules"
_PRUNING = "org.apache.spark.sql.catalyst.optimizer.PruneFilters"


def start(
    session: Session,
    table: Table,
    *,
    available_now: bool = False,
    reached: Callable[[str], None] = lambda point: None,
) -> StreamingQuery | StepLoop:
    """Starts the query that fills `table`, Spark's own or steps of ours (`stream.strategy`).

    Its tables must exist (`prepare`).

    `available_now` ends it at the present.

    Raises DeclarationError if it began as another table (`begun_with`).
    """
    declared_state.begin(session, table)
    if table.kind.is_derived:
        handover.check(session, table)
    if table.kind.is_derived and not began(session.settings, table) and _cut(session, table):
        begun = handover.begin(session, table)
        message = (
            f"table={table.name}: the log of {begun.input} does not go back to its beginning any more, so the stream begins at "
            f"its handover {ranges.text(begun.frontier)}; `lakehouse bootstrap {table.name}` computes what lies before that"
        )
        _log.warning(message)
    generations.fit(session, table)
    filled_by = strategy(session, table)
    run = stream_run(session, table, reached)
    for name, version in pinned_states(session, table, run.pinned).items():
        message = (
            f"table={table.name}, input={name}: read as of {version}, until the job is started again; a table that is to follow "
            "changes reads a versioned table, as of the event time"
        )
        _log.warning(message)
    engines: dict[Strategy, Callable[[], StepInput[Any]]] = {
        "ingest": lambda: ingest.source_input(run),
        "append": lambda: TableInput(run, *_row(run)),
        "close": lambda: TableInput(run, *_closing(run)),
        "versions": lambda: TableInput(run, *keyed.version_steps(run)),
        "merge": lambda: TableInput(run, *keyed.merge_steps(run)),
        "groups": lambda: ChangeInput(run, *groups.group_steps(run)),
    }
    if filled_by in engines:
        pace = session.pace(table)
        return StepLoop(run, engines[filled_by](), available_now=available_now, pace=pace).start()
    stream, batches = _window(run) if table.kind.is_windowed else keyed.state(run)
    session.spark.sparkContext.setLocalProperty("spark.scheduler.pool", table.name)
    writer = stream.writeStream.queryName(table.name).option(
        "checkpointLocation", str(run.checkpoint)
    )
    trigger = (
        {"availableNow": True}
        if available_now
        else {"processingTime": spark_interval(session.pace(table))}
    )
    mode = "update" if table.kind.keeps_latest else "append"
    input_frontier = InputFrontier(run)
    input_frontier.begin(available_now=available_now)
    with _late_filter_kept(session):
        query = writer.outputMode(mode).foreachBatch(batches).trigger(**trigger).start()
    if not available_now:
        input_frontier.follow(query)
    return query


@contextmanager
def _late_filter_kept(session: Session) -> Iterator[None]:
    """The late filter of a query that starts now stays in its plan.

    Behind a filter that is never true Spark else removes it.

    So it does with the watermark. (A micro-batch of another kind is counted by itself then:
    `Plan.late_filter_counts`.)
    """
    excluded = session.spark.conf.get(_EXCLUDED, "") or ""
    session.spark.conf.set(_EXCLUDED, ",".join(filter(None, (excluded, _PRUNING))))
    try:
        yield  # the query takes a copy of the session's settings
    finally:
        session.spark.conf.set(_EXCLUDED, excluded)


def pinned_states(
    lakehouse: Lakehouse, table: Table, versions: Mapping[str, int]
) -> dict[str, str]:
    """The keyed tables among the pinned inputs, and the reference tables that are made of one, and what the table sees of them.

    A state changes with each micro-batch; what is pinned does not.
    """
    states = [
        t
        for t in lakehouse.catalog.pinned_inputs(table)
        if t.name in versions and _follows(lakehouse, t)
    ]
    return {t.name: _dated(lakehouse, t, versions[t.name]) for t in states}


def read_as_of(lakehouse: Lakehouse, table: Table, inputs: Mapping[str, Mapping]) -> dict[str, str]:
    """`pinned_states`, and the refreshed reference tables as the last rows saw them, by the inputs of a commit."""
    pinned = inputs["references"]
    seen = {**pinned, **{name: versions[-1] for name, versions in inputs[SEEN].items()}}
    tables = (lakehouse.catalog.tables.get(name) for name in seen)
    refreshed = {t.name: _dated(lakehouse, t, seen[t.name]) for t in tables if t and t.refresh}
    return pinned_states(lakehouse, table, pinned) | refreshed


def _dated(lakehouse: Lakehouse, table: Table, version: int) -> str:
    moment = delta_log.written(lakehouse.path(table), version)
    return f"version {version}" + (f" of {ranges.text(moment)}" if moment else "")


def _follows(lakehouse: Lakehouse, table: Table) -> bool:
    """Whether the table changes with the stream: a state, or a reference table of one."""
    return table.kind.is_upserted or any(
        _follows(lakehouse, t) for t in lakehouse.catalog.pinned_inputs(table)
    )


def _cut(lakehouse: Lakehouse, table: Table) -> bool:
    """Whether a stream cannot read its inputs from the beginning any more."""
    return any(
        delta_log.oldest(lakehouse.path(each)) > 0 for each in lakehouse.catalog.timed_inputs(table)
    )


def prepare(session: Session, tables: list[Table]) -> None:
    """Makes the tables that are not there yet, in order, and adds the columns that they have not."""
    for table in tables:
        creation.create(session, table, grows=True)


def _row(run: StreamRun) -> tuple[Take, Due, Due]:
    session = run.session
    references = run.references()
    by_frontiers = session.catalog.follows_frontiers(run.table)
    looked_up = StepLookups(session, run.plan, run.service) if run.service else None
    refreshed_inputs = RefreshedInputs(run)

    def begins(before: Commit | None) -> datetime:
        return (before and before.frontier) or run.start

    def quiet_due(offset: Mapping[str, Any]) -> bool:
        complete = run.complete(offset)
        before = next(run.commit_log.by_stream(), None)
        return complete is not None and complete > begins(before)

    alone = len(run.plan.followed) == 1 and not (
        run.table.deduplicate or looked_up or session.catalog.refreshed_inputs(run.table)
    )

    def step(rows: Mapping[str, InputRows], batch_id: int, log: BatchLog) -> None:
        before = run.commit_log.before(run.generation, batch_id)
        start = begins(before)
        note: dict[str, Any] = {
            "watermark": start,
            "inputs": {"tables": log.inputs, "references": run.pinned},
        }
        if log.quiet is not None:
            ahead = max(start, run.complete(log.inputs) or start)
            run.skip(batch_id, before, frontier=ahead, **note)
            return
        furthest_of = partial(_furthest, run, start, log.inputs, by_frontiers)
        batch_rows = rows[run.plan.driving]
        new = alone and batch_id > run.committed
        if new and (few := _prepared_rows(run, references, batch_rows)):
            note["inputs"] |= refreshed.seen([])
            run.write(
                few, batch_id, lambda _: furthest_of(late_counts.in_micros(few.observed)), **note
            )
            return
        beside = frames(rows)
        batch, late_filter = beside.pop(run.plan.driving), Observation()
        duplicates = run.table.deduplicate
        others = _near(session, run, batch, duplicates) if duplicates else None
        answers = looked_up.of(batch, run.app(batch_id)) if looked_up else None
        met = refreshed_inputs.met(batch)
        note["inputs"] |= refreshed.seen(met)
        # of other inputs nothing is observed on the way, and what is read for several versions would be twice
        observed = None if beside or answers or len(met) > 1 else late_filter
        judged = run.plan.derived(
            batch,
            references,
            "stream",
            observed,
            others=others,
            beside=beside,
            answers=answers,
            met=met,
        )

        def counts(_: Mapping[str, Any]) -> dict[str, Any]:
            if observed is None:
                return furthest_of(late_counts.counted(run, rows))
            return furthest_of(
                late_counts.in_micros(run.plan.late_filter_counts(late_filter, batch))
            )

        run.write(judged, batch_id, counts, rows=log.rows, **note)

    return step, lambda offset: True, quiet_due


def _prepared_rows(
    run: StreamRun, references: Mapping[str, DataFrame], batch: InputRows
) -> Few | None:
    """Returns the rows of a small step of one input by the prepared plan, if there is one."""

    def prepared(
        inputs: Mapping[str, DataFrame], _: object, outcome: str | Observation
    ) -> DataFrame:
        rows = batch.written_by_stream(inputs[run.plan.driving])
        return run.due(run.plan.derived(rows, references, "stream", outcome))

    name = run.plan.driving
    few = run.prepared.few(prepared, {name: batch.here}, {name: batch.columns})
    # a join with nothing reads no row, and counts none
    return few if few and few.observed.get("arrived") else None


def _furthest(
    run: StreamRun, start: datetime, inputs: Mapping[str, Any], by_frontiers: bool, passed: dict
) -> dict[str, Any]:
    """What passed the late filter, with how far the table is by it."""
    brought = passed.pop("watermark")
    furthest = start if by_frontiers or not brought else brought
    return passed | {"frontier": max(start, run.complete(inputs) or start, furthest)}


def _near(session: Session, run: StreamRun, batch: DataFrame, duplicates: Duplicates) -> DataFrame:
    """The input's rows among which duplicates of the batch's rows may be.

    What arrived after the batch does not count.
    """
    moment = session.catalog.event_time(session.catalog.table(run.plan.driving))
    first, last = observing.only(batch.agg(F.min(moment), F.max(moment)))
    span = (
        Range(ranges.utc(first), ranges.utc(last) + _INSTANT)
        if first
        else Range(BEGINNING, BEGINNING + timedelta(1))
    )
    within = lateness.between(F.col(moment), ranges.widened(span, duplicates.within))
    return session.read(session.catalog.table(run.plan.driving)).where(within)


def _window(run: StreamRun) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
    stream = run.stream()
    rows = lateness.driven_by_stored_watermark(stream, run.plan.event_time)
    judged = run.plan.derived(rows, run.references(), "stream", f"late_filter_{run.table.name}")

    input_frontier = InputFrontier(run)

    def batches(batch: DataFrame, batch_id: int) -> None:
        log = run.log(batch_id)
        before = run.commit_log.before(run.generation, batch_id)
        start = (before and before.frontier) or run.start
        batch = run.held(batch)
        try:
            run.write(
                batch,
                batch_id,
                lambda _: late_counts.of_late_filter(run),
                watermark=log.watermark,
                frontier=max(log.watermark, start),
                rows=batch.count(),
                inputs={"tables": log.inputs, "references": run.pinned},
            )
        finally:
            batch.unpersist()
        input_frontier.advance(log.inputs[run.plan.driving])

    return judged, batches


def _closing(run: StreamRun) -> tuple[Take, Due, Due]:
    """At each micro-batch the batch function, on the range that it closes (`strategy.closes_ranges`).

    The range is complete: of the rows still to come those that fall into it are late.
    """
    session, table, computed = run.session, run.table, run.plan
    references, versioned_inputs = run.references(), session.catalog.versioned_inputs(table)
    by_frontiers = session.catalog.follows_frontiers(table)

    def begins(before: Commit | None) -> datetime:
        return (before and before.frontier) or run.start

    def ahead_of(start: datetime, complete: datetime) -> datetime:
        # a row finds what was valid only once the versioned table is as far; looked at before it is read
        for versioned in versioned_inputs:
            complete = min(complete, frontier(session.settings, versioned) or start)
        return max(start, complete - table.after)

    def closes(start: datetime, ahead: datetime) -> bool:
        return ahead > start and ranges_of.closes(table, Range(start, ahead))

    def due(offset: Mapping[str, Any]) -> bool:
        # the line of the commit that was just seen may be yet to come
        complete = run.complete(offset)
        start = begins(next(run.commit_log.by_stream(), None))
        return complete is not None and closes(start, ahead_of(start, complete))

    def step(rows: Mapping[str, InputRows], batch_id: int, log: BatchLog) -> None:
        before = run.commit_log.before(run.generation, batch_id)
        start = begins(before)
        counted = cache(partial(late_counts.counted, run, rows if log.quiet is None else {}))
        complete = run.complete(log.inputs)
        if complete is None and not by_frontiers:
            complete = counted()["watermark"]
        ahead = ahead_of(start, complete or start)
        # a batch that is replayed does not decide again what it has written: the stream may be
        # further by now
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
        closed = compute.closing(
            session, computed, Range(start, ahead), references | session.references(read)
        )
        note["inputs"] = {**inputs, **closed.inputs}
        with kept_states.keeping(session, closed.begun):
            # counted after it is written: it can be read sooner
            run.write(
                closed.judged,
                batch_id,
                lambda _: counted() | note,
                rows=log.rows,
                **note,
            )

    return step, due, due
