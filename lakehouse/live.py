"""The live run: one Structured Streaming query fills one table; what its micro-batches hold, by kind of table.

How a micro-batch is written, `lakehouse.live_run` says.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from lakehouse import (
    bounded,
    declared,
    delta_log,
    event_time,
    generations,
    keyed,
    observing,
    offsets,
    plan,
    ranges,
    seam,
    sinks,
    sources,
)
from lakehouse.checkpoints import Written, beginning, ended, topics_begun
from lakehouse.errors import BrokerError, DeclarationError
from lakehouse.event_time import Head
from lakehouse.frontier import frontier
from lakehouse.lake import Lake
from lakehouse.live_run import BatchLog, LiveRun, began, live_run
from lakehouse.plan import REASON, Plan
from lakehouse.ranges import EPOCH, Range
from lakehouse.table import Table

_INSTANT = timedelta(microseconds=1)
_EXCLUDED = "spark.sql.optimizer.excludedRules"
_PRUNING = "org.apache.spark.sql.catalyst.optimizer.PruneFilters"
_RECORDS = 10_000  # of a micro-batch, to be worth a task of their own


def start(
    lake: Lake,
    table: Table,
    *,
    available_now: bool = False,
    reached: Callable[[str], None] = lambda point: None,
) -> StreamingQuery:
    """Starts the query that fills `table`; its tables must exist (`prepare`). `available_now` ends it at the present.

    Raises DeclarationError if it began as another table (`declared`).
    """
    declared.begin(lake.settings, lake.catalog, table)
    if lake.catalog.is_derived(table) and not began(lake.settings, table):
        seam.check(lake, table)
    if lake.catalog.is_derived(table) and not began(lake.settings, table) and _cut(lake, table):
        begun = seam.begin(lake, table)
        told = (
            f"table={table.name}: the log of {begun.input} does not go back to its beginning any more, so the live run begins at "
            f"its seam {ranges.text(begun.frontier)}; what lies before that `lakehouse seam {table.name}` computes"
        )
        print(told, file=sys.stderr, flush=True)
    generations.fit(lake, table, _replayed)
    run = live_run(lake, table, reached)
    for name, version in pinned_states(lake, table, run.pinned).items():
        told = (
            f"table={table.name}, input={name}: read as of {version}, until the job is started again; a table that is to follow "
            "changes reads a history, as of the event time"
        )
        print(told, file=sys.stderr, flush=True)
    closing = run.plan.kind in ("row", "window") and plan.closes_ranges(lake, run.plan)
    kinds = {"record": _record, "row": _row, "window": _window, "state": keyed.state, "history": keyed.history}
    stream, batches = (_closing if closing else kinds[run.plan.kind])(run)
    lake.spark.sparkContext.setLocalProperty("spark.scheduler.pool", table.name)
    writer = stream.writeStream.queryName(table.name).option("checkpointLocation", str(run.checkpoint))
    trigger = {"availableNow": True} if available_now else {"processingTime": lake.pace(table)}
    mode = "update" if table.keeps == "state" else "append"
    aggregates = not closing and run.plan.kind in ("window", "state")
    with _gate_kept(lake) if aggregates else nullcontext():
        return writer.outputMode(mode).foreachBatch(batches).trigger(**trigger).start()


@contextmanager
def _gate_kept(lake: Lake) -> Iterator[None]:
    """The gate of a query that starts now stays in its plan. Behind a filter that is never true Spark else removes it.

    So it does with the watermark. (A micro-batch of another kind is counted by itself then: `Plan.gate_counts`.)
    """
    excluded = lake.spark.conf.get(_EXCLUDED, "")
    lake.spark.conf.set(_EXCLUDED, ",".join(filter(None, (excluded, _PRUNING))))
    try:
        yield  # the query takes a copy of the session's settings
    finally:
        lake.spark.conf.set(_EXCLUDED, excluded)


def pinned_states(lake: Lake, table: Table, versions: Mapping[str, int]) -> dict[str, str]:
    """The states among the snapshot inputs, which change with each micro-batch, and what the table sees of them."""
    states = [t for t in lake.catalog.snapshot_inputs(table) if t.keeps and t.name in versions]
    at = {t.name: delta_log.written(lake.path(t), versions[t.name]) for t in states}
    return {name: f"version {versions[name]}" + (f" of {ranges.text(moment)}" if moment else "") for name, moment in at.items()}


def _cut(lake: Lake, table: Table) -> bool:
    """Whether a stream cannot read its input from the beginning any more."""
    return delta_log.oldest(lake.path(lake.catalog.driving_input(table))) > 0


def prepare(lake: Lake, tables: list[Table]) -> None:
    """Makes the tables that are not there yet, in order."""
    for table in tables:
        sinks.create(lake, table)


def check_topics(lake: Lake, table: Table) -> None:
    """Raises TopicError if a topic of an ingest table is not the one that the table has read."""
    offsets.watch(lake.settings, table, sorted(source.topic for source in lake.catalog.topics_of(table).values()))()


def _record(run: LiveRun) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
    last = next(run.lake.journal(run.table).live(), None)
    read = last.inputs if last else {}
    topics = {source.topic for source in run.plan.topics.values()}
    exists = (run.checkpoint / "offsets").exists()
    if last and topics != set(read) and exists:
        raise DeclarationError(
            f"table={run.table.name}, topics={', '.join(sorted(topics))}: its checkpoint was made with "
            f"{', '.join(sorted(read))}, and a record keeps the topics that it began with; declare the others in a record of "
            "another name, or take the change back"
        )
    begins: offsets.Offsets = {}
    try:  # a new generation goes on where the table ends; a generation that exists takes its own offsets and ignores this
        begins = offsets.start(run.lake.settings, run.table, sorted(topics), last, waits=exists)
    except BrokerError:
        if not exists:
            raise  # else the query waits for the broker, and compares then
    same_topics = offsets.watch(run.lake.settings, run.table, sorted(topics))
    records = {
        name: sources.topic_stream(run.lake.spark, run.lake.settings, source, begins.get(source.topic))
        for name, source in run.plan.topics.items()
    }

    def batches(batch: DataFrame, batch_id: int) -> None:
        log = run.log(batch_id)
        same_topics()
        begun = ended(run.checkpoint, batch_id - 1) if batch_id else topics_begun(run.checkpoint)
        before = run.lake.journal(run.table).before(run.generation, batch_id)
        offsets.check_joined(run.table, offsets.known(run.lake.settings, run.table), before, begun, log.inputs)
        tasks, partitions = _tasks(run, batch_id, log), sum(map(len, log.inputs.values()))
        record_batch(run, batch.coalesce(tasks) if tasks < partitions else batch, batch_id, log)

    return run.plan.record(records), batches


def _replayed(lake: Lake, table: Table, written: Written) -> None:
    """Writes what a micro-batch, whose rows are in the table, has not written yet: its quarantine, its line of the journal."""
    begun = beginning(lake.settings, table, written.generation)
    before = lake.journal(table).before(*written.number)
    run = replace(live_run(lake, table), generation=written.generation, begun=begun, committed=written.batch)
    records = {
        name: sources.topic_rows(lake.spark, lake.settings, source, before and before.inputs.get(source.topic), written.inputs)
        for name, source in run.plan.topics.items()
    }
    log = BatchLog(EPOCH, written.at, dict(written.inputs))
    record_batch(run, run.plan.record(records), written.batch, log)


def _tasks(run: LiveRun, batch_id: int, log: BatchLog) -> int:
    """How many tasks a record's micro-batch is worth: each writes a file, and all that reads the table opens it."""
    before = run.lake.journal(run.table).before(run.generation, batch_id)
    known = before.inputs if before else {}
    records = sum(end - known.get(t, {}).get(p, 0) for t, ends in log.inputs.items() for p, end in ends.items())
    return max(1 + records // _RECORDS, 1)  # of a topic that was made anew the offsets go back


def record_batch(run: LiveRun, batch: DataFrame, batch_id: int, log: BatchLog) -> None:
    """Writes one micro-batch of judged records (`Plan.record`); `log.inputs`: topic -> partition -> next offset."""
    before = run.lake.journal(run.table).before(run.generation, batch_id)
    silent = {source.topic: source.idle_after for source in run.plan.topics.values()}
    partitions = {_key(t, p): (t, int(p)) for t, offsets in sorted(log.inputs.items()) for p in sorted(offsets, key=int)}
    delay, idle = run.table.delay, {key: silent[topic] for key, (topic, _) in partitions.items()}
    heads = {key: Head(*head) for key, head in before.heads.items() if key in partitions} if before else {}
    # a clock that was set back must not change the order in which rows arrived
    at = max([log.at, *(head.active + _INSTANT for head in heads.values())])
    mark = event_time.watermark(before.watermark if before else EPOCH, heads, delay, idle)
    good = F.when(F.col(REASON).isNull(), F.lit(at) if run.plan.by_ingestion else F.col(run.plan.event_time))
    maxima = [F.max(F.when(run.plan.of_partition(*where), good)).alias(key) for key, where in partitions.items()]

    def counts(seen: Mapping[str, object]) -> dict[str, object]:
        latest = {key: plan.utc(seen[key]) for key in partitions if seen[key] is not None}
        if run.plan.by_ingestion and latest:
            latest = dict.fromkeys(partitions, at)  # time goes on for a partition without records, too
        now = event_time.advanced(heads, latest, at)
        return {
            "arrived": seen["good"] + seen["bad"],  # the plan keeps every row
            "frontier": event_time.watermark(mark, now, delay, idle),
            "heads": {key: (h.event_time, h.active) for key, h in now.items()},
        }

    def arrived(judged: DataFrame) -> DataFrame:
        return run.plan.arrived(judged, mark, at)

    run.write(batch, batch_id, counts, maxima, arrived, watermark=mark, inputs=log.inputs)


def _key(topic: str, partition: str) -> str:
    return f"{topic}-{partition}"


def _row(run: LiveRun) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
    lake = run.lake
    driving = lake.catalog.table(run.plan.driving)
    stream = run.stream()
    snapshots = run.snapshots()

    def batches(batch: DataFrame, batch_id: int) -> None:
        log = run.log(batch_id)
        before = lake.journal(run.table).before(run.generation, batch_id)
        gate = Observation()
        others = _near(lake, run, batch) if run.table.deduplicate else None
        judged = run.plan.derived(batch, observing.beside(batch, snapshots), "live", gate, others=others)
        start = (before and before.frontier) or run.start

        def counts(_: Mapping[str, object]) -> dict[str, object]:
            passed = run.plan.gate_counts(gate, batch)
            furthest = passed["watermark"]
            return {
                "arrived": passed["arrived"],
                "late": passed["late"],
                "late_from": ranges.micros(passed["late_from"]),
                "late_to": ranges.micros(passed["late_to"]),
                "frontier": max(start, run.complete(log) or start, plan.utc(furthest) if furthest else start),
            }

        run.write(
            judged,
            batch_id,
            counts,
            watermark=start,
            inputs={"tables": {driving.name: log.inputs}, "snapshots": run.pinned},
        )

    return stream, batches


def _near(lake: Lake, run: LiveRun, batch: DataFrame) -> DataFrame:
    """The input's rows among which duplicates of the batch's rows may be; what arrived after the batch does not count."""
    moment = lake.catalog.event_time(lake.catalog.table(run.plan.driving))
    first, last = batch.agg(F.min(moment), F.max(moment)).head()
    span = Range(plan.utc(first), plan.utc(last) + _INSTANT) if first else Range(EPOCH, EPOCH + timedelta(1))
    within = event_time.between(F.col(moment), ranges.widened(span, run.table.deduplicate.within))
    return lake.read(lake.catalog.table(run.plan.driving)).where(within)


def _window(run: LiveRun) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
    lake = run.lake
    driving = lake.catalog.table(run.plan.driving)
    stream = run.stream()
    rows = event_time.driven_by_stored_watermark(stream, run.plan.event_time)
    judged = run.plan.derived(rows, run.snapshots(), "live", f"gate_{run.table.name}")

    def batches(batch: DataFrame, batch_id: int) -> None:
        log = run.log(batch_id)
        batch = run.held(batch)
        try:
            run.write(
                batch, batch_id, lambda _: _of_gate(run), watermark=log.watermark,
                frontier=max(log.watermark, run.start),
                inputs={"tables": {driving.name: log.inputs}, "snapshots": run.pinned},
            )  # fmt: skip
        finally:
            batch.unpersist()

    return judged, batches


def _closing(run: LiveRun) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
    """At each micro-batch the bounded function, on the range that it closes (`plan.closes_ranges`).

    The range is complete: of the rows still to come those that fall into it are late.
    """
    lake, table, step = run.lake, run.table, run.plan
    driving = lake.catalog.table(step.driving)
    stream = event_time.arrivals(run.stream(), step.event_time)
    snapshots, histories = run.snapshots(), lake.catalog.histories(table)

    def batches(batch: DataFrame, batch_id: int) -> None:
        log = run.log(batch_id)
        before = lake.journal(table).before(run.generation, batch_id)
        start = (before and before.frontier) or run.start
        counted = cache(partial(_counted, step, batch))
        complete = run.complete(log) or counted()["watermark"] or start
        for history in histories:  # a row finds what was valid only once its history is as far; looked at before it is read
            complete = min(complete, frontier(lake.settings, history) or start)
        # a batch that is replayed does not decide anew what it has written: the stream may be further by now
        ahead = run.noted_frontier(batch_id, start) or max(start, complete - table.after)
        read = {history.name: sinks.version(lake.path(history)) for history in histories}
        inputs = {"tables": {driving.name: log.inputs}, "snapshots": run.pinned} | ({"histories": read} if read else {})
        known = {"watermark": start, "frontier": ahead, "inputs": inputs}
        if ahead == start or not event_time.closes(table, span := Range(start, ahead)):
            run.skip(batch_id, before, **counted() | known)
            return
        judged = bounded.closing(lake, step, span, snapshots | lake.snapshots(read))
        run.write(judged, batch_id, lambda _: counted() | known, **known)  # counted after it is written: it can be read sooner

    return stream, batches


def _counted(step: Plan, batch: DataFrame) -> dict[str, object]:
    seen = step.counts(batch).head().asDict()
    seen |= {name: ranges.micros(seen[name]) for name in ("late_from", "late_to")}
    return seen | {"watermark": seen["watermark"] and plan.utc(seen["watermark"])}


def _of_gate(run: LiveRun) -> dict[str, object]:
    seen = run.gate_counts()
    del seen["watermark"]  # the query's own is in force
    return seen
