"""The stream: one query, of steps or of Spark's, fills one table.

`strategy` decides which of the two a table has. The modules of `engines` make its micro-batches, and `micro_batch` writes them.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from lakehouse import ranges
from lakehouse.declare.table import Table
from lakehouse.durations import spark_interval
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk.objects import for_spark
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import declared_state, table_state
from lakehouse.storage.position.reference_versions import SEEN
from lakehouse.storage.session import Session
from lakehouse.stream import generations, handover, late_counts, real_time
from lakehouse.stream.advance import StepInput, StepLoop
from lakehouse.stream.engines import append, close, groups, ingest, keyed
from lakehouse.stream.engines.table_steps import ChangeInput, TableInput
from lakehouse.stream.input_frontier import InputFrontier
from lakehouse.stream.micro_batch import StreamRun, stream_run
from lakehouse.stream.strategy import Strategy, strategy
from lakehouse.transform import creation, lateness
from lakehouse.transform.function_inputs import Inputs

_log = logging.getLogger(__name__)

_EXCLUDED = "spark.sql.optimizer.excludedRules"
_starting = threading.Lock()  # of two starts at once, one would put the other's setting back
_PRUNING = "org.apache.spark.sql.catalyst.optimizer.PruneFilters"


def start(
    session: Session,
    table: Table,
    *,
    available_now: bool = False,
    reached: Callable[[str], None] = lambda point: None,
) -> StreamingQuery | StepLoop:
    """Starts the query that fills `table`, Spark's own or steps of ours (`stream.strategy`), and returns it.

    Its tables must exist (`prepare`).

    `available_now` ends it at the present.

    Raises DeclarationError if the stream started under another declaration (`declared_state`).
    """
    session.commit_log(table).read_on()  # what a crash kept from it
    state = declared_state.begin(session, table_state.read(session, table))
    if table.kind.is_derived:
        state = handover.check(session, state)
    if table.kind.is_derived and not state.standing.began and _cut(session, table):
        begun = handover.begin(session, table)
        state = table_state.read(session, table)
        message = (
            f"table={table.name}: the log of {begun.input} does not go back to its beginning any more, so the stream begins at "
            f"its handover {ranges.text(begun.frontier)}; `lakehouse bootstrap {table.name}` computes what lies before that"
        )
        _log.warning(message)
    filled_by = strategy(session, table)
    run = stream_run(session, generations.fit(session, state, filled_by), reached)
    for name, version in pinned_states(session, table, run.pinned).items():
        message = (
            f"table={table.name}, input={name}: read as of {version}, until the job is started again; a table that is to follow "
            "changes reads a versioned table, as of the event time"
        )
        _log.warning(message)
    engines: dict[Strategy, Callable[[], StepInput[Any]]] = {
        "ingest": lambda: ingest.source_input(run),
        "append": lambda: TableInput(run, *append.append_steps(run)),
        "close": lambda: TableInput(run, *close.close_steps(run)),
        "versions": lambda: TableInput(run, *keyed.version_steps(run)),
        "merge": lambda: TableInput(run, *keyed.merge_steps(run)),
        "groups": lambda: ChangeInput(run, *groups.group_steps(run)),
    }
    if filled_by in engines:
        pace = session.pace(table)
        beside = [] if available_now else real_time.senders(run)
        loop = StepLoop(
            run, engines[filled_by](), available_now=available_now, pace=pace, real_time=beside
        )
        return loop.start()
    stream, batches = _window(run) if table.kind.is_windowed else keyed.state(run)
    session.spark.sparkContext.setLocalProperty("spark.scheduler.pool", table.name)
    writer = stream.writeStream.queryName(table.name).option(
        "checkpointLocation", for_spark(run.checkpoint)
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
    """Keeps the late filter of a query that starts now in its plan.

    Otherwise Spark removes what a filter that is never true reads: the late filter, and the watermark.

    (A micro-batch of another kind is then counted by itself: `Plan.late_filter_counts`.)
    """
    with _starting:
        excluded = session.spark.conf.get(_EXCLUDED, "") or ""
        session.spark.conf.set(_EXCLUDED, ",".join(filter(None, (excluded, _PRUNING))))
        try:
            yield  # the query takes a copy of the session's settings
        finally:
            session.spark.conf.set(_EXCLUDED, excluded)


def pinned_states(
    lakehouse: Lakehouse, table: Table, versions: Mapping[str, int]
) -> dict[str, str]:
    """Returns the keyed tables among the pinned inputs, and the reference tables made of one, each with the version read.

    A state changes with each micro-batch; what is pinned does not.
    """
    states = [
        t
        for t in lakehouse.catalog.pinned_inputs(table)
        if t.name in versions and _follows(lakehouse, t)
    ]
    return {t.name: _dated(lakehouse, t, versions[t.name]) for t in states}


def read_as_of(lakehouse: Lakehouse, table: Table, inputs: Mapping[str, Mapping]) -> dict[str, str]:
    """Returns `pinned_states`, and the refreshed reference tables as the last rows saw them, by the inputs of a commit."""
    pinned = inputs["references"]
    seen = {**pinned, **{name: versions[-1] for name, versions in inputs[SEEN].items()}}
    tables = (lakehouse.catalog.tables.get(name) for name in seen)
    refreshed = {t.name: _dated(lakehouse, t, seen[t.name]) for t in tables if t and t.refresh}
    return pinned_states(lakehouse, table, pinned) | refreshed


def _dated(lakehouse: Lakehouse, table: Table, version: int) -> str:
    moment = delta_log.written(lakehouse.path(table), version)
    return f"version {version}" + (f" of {ranges.text(moment)}" if moment else "")


def _follows(lakehouse: Lakehouse, table: Table) -> bool:
    """Returns True if the table changes with the stream: a state, or a reference table of one."""
    return table.kind.is_upserted or any(
        _follows(lakehouse, t) for t in lakehouse.catalog.pinned_inputs(table)
    )


def _cut(lakehouse: Lakehouse, table: Table) -> bool:
    """Returns True if a stream can no longer read its inputs from the beginning."""
    return any(
        delta_log.oldest(lakehouse.path(each)) > 0 for each in lakehouse.catalog.timed_inputs(table)
    )


def prepare(session: Session, tables: list[Table]) -> None:
    """Makes the tables that do not exist yet, in order, and adds the columns that they lack."""
    for table in tables:
        creation.create(session, table, grows=True)


def _window(run: StreamRun) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
    stream = run.stream()
    rows = lateness.driven_by_stored_watermark(stream, run.plan.event_time)
    inputs = Inputs(rows, run.references())
    judged = run.plan.derived(inputs, "stream", f"late_filter_{run.table.name}")

    input_frontier = InputFrontier(run)

    def batches(batch: DataFrame, batch_id: int) -> None:
        log = run.log(batch_id)
        before = run.commit_log.before(run.generation, batch_id)
        start = run.frontier_after(before)
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
