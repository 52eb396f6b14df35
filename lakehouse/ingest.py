"""The live run of an ingest table: the micro-batches of its topics, their offsets, and the watermark that follows from them."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import checkpoints, event_time, offsets, plan, sources
from lakehouse.checkpoints import Written, beginning
from lakehouse.errors import BrokerError, DeclarationError
from lakehouse.event_time import Head
from lakehouse.lake import Lake
from lakehouse.live_run import BatchLog, LiveRun, live_run
from lakehouse.plan import REASON
from lakehouse.ranges import EPOCH
from lakehouse.table import Table

_INSTANT = timedelta(microseconds=1)
_RECORDS = 10_000  # of a micro-batch, to be worth a task of their own


def check_topics(lake: Lake, table: Table) -> None:
    """Raises TopicError if a topic of an ingest table is not the one that the table has read."""
    offsets.watch(lake.settings, table, sorted(source.topic for source in lake.catalog.topics_of(table).values()))()


def record(run: LiveRun) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
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
    except BrokerError as err:
        if not exists:
            raise
        print(f"table={run.table.name}: {err}; its query waits for the broker, and compares then", file=sys.stderr, flush=True)
    same_topics = offsets.watch(run.lake.settings, run.table, sorted(topics))
    records = {
        name: sources.topic_stream(run.lake.spark, run.lake.settings, source, begins.get(source.topic))
        for name, source in run.plan.topics.items()
    }

    def batches(batch: DataFrame, batch_id: int) -> None:
        log = run.log(batch_id)
        same_topics()
        begun = checkpoints.begins(run.checkpoint, batch_id)
        before = run.lake.journal(run.table).before(run.generation, batch_id)
        offsets.check_joined(run.table, offsets.known(run.lake.settings, run.table), before, begun, log.inputs)
        records = _records(run, batch_id, log)
        # each task writes a file, and all that reads the table opens it; of a topic that was made anew the offsets go back
        tasks, partitions = max(1 + records // _RECORDS, 1), sum(map(len, log.inputs.values()))
        log = replace(log, rows=max(records, 0))
        record_batch(run, batch.coalesce(tasks) if tasks < partitions else batch, batch_id, log)

    return run.plan.record(records), batches


def replay(lake: Lake, table: Table, written: Written) -> None:
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


def _records(run: LiveRun, batch_id: int, log: BatchLog) -> int:
    """How many records a micro-batch has, by its offsets."""
    before = run.lake.journal(run.table).before(run.generation, batch_id)
    known = before.inputs if before else {}
    return sum(end - known.get(t, {}).get(p, 0) for t, ends in log.inputs.items() for p, end in ends.items())


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

    ids = offsets.known(run.lake.settings, run.table).ids
    run.write(batch, batch_id, counts, maxima, arrived, rows=log.rows, topics=ids, watermark=mark, inputs=log.inputs)


def _key(topic: str, partition: str) -> str:
    return f"{topic}-{partition}"
