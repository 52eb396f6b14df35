"""The stream of an ingest table: the micro-batches of its sources, their offsets, and the watermark that follows from them."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql.pandas.types import from_arrow_schema

from lakehouse.ranges import BEGINNING, utc
from lakehouse.runtime.prepared_plans import Moment
from lakehouse.storage.log import latest_times
from lakehouse.storage.position import reference_versions
from lakehouse.storage.position.checkpoints import Written, beginning
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.prepared_steps import Few
from lakehouse.stream.reading import offsets, readings
from lakehouse.stream.reading.contract import Reader
from lakehouse.stream.reading.raw_records import RawRecords, raw_records
from lakehouse.stream.reading.registry import reader_of
from lakehouse.stream.reading.source_input import SourceInput
from lakehouse.transform import observing
from lakehouse.watermarks import MOST_VALUES, Holders

_log = logging.getLogger(__name__)

_INSTANT = timedelta(microseconds=1)


def source_input(run: StreamRun) -> SourceInput:
    """Returns the input of an ingest table. Attached, it raises SourceError, CommitError, DeclarationError, BrokerError."""
    reader = reader_of(run.session.settings, run.table, run.plan.sources.values())
    return SourceInput(
        run,
        reader,
        partial(ingest_batch, run),
        partial(finish, run, reader),
        run.session.catalog.quiet_timeout(run.table),
    )


def finish(run: StreamRun, reader: Reader, written: Written) -> None:
    """Writes the rest of a step whose rows are in the table: its quarantine, its line of the commit log."""
    session, table = run.session, run.table
    before = session.commit_log(table).before(*written.number)
    number = written.generation
    standing = replace(
        run.state.standing,
        generation=number,
        beginning=beginning(session.settings, table, number),
    )
    of = replace(run, state=replace(run.state, standing=standing), committed=written.batch)
    starts = offsets.known(session.settings, table).starts
    begins = offsets.behind(session.settings, table, before, starts)
    names = {source.address: name for name, source in run.plan.sources.items()}
    rows = reader.reread(session, begins, written.inputs, written.at)
    read = {names[address]: each for address, each in rows.items()}
    ingest_batch(
        of,
        raw_records(of, read, written.unknown_schemas),
        written.batch,
        BatchLog(written.watermark or BEGINNING, written.at, dict(written.inputs)),
    )


def ingest_batch(
    run: StreamRun,
    batch: RawRecords,
    batch_id: int,
    log: BatchLog,
) -> None:
    """Writes one micro-batch.

    `log.inputs`: topic -> partition -> next offset. While its topics are quiet the batch is empty, and
    its watermark goes on by the time that has passed. The commit records that, and every run repeats it.
    """
    before = run.session.commit_log(run.table).before(run.generation, batch_id)
    # rows of a history move no watermark: they are in no order, and all of them count
    silent = {s.address: s.idle_timeout for s in run.plan.sources.values() if not s.is_history}
    partitions = {
        _key(t, p): (t, int(p))
        for t in sorted(log.inputs.keys() & silent.keys())
        for p in sorted(log.inputs[t], key=int)
    }
    delay, idle = run.table.delay, {key: silent[topic] for key, (topic, _) in partitions.items()}
    holders = Holders(idle, silent, run.table.watermark_by)
    heads = holders.heads(before.heads) if before else {}
    # a clock that was set back must not change the order in which rows arrived
    at = max([log.at, *(head.active + _INSTANT for head in heads.values())])
    if batch_id > run.committed:  # before the first row that sees these versions
        readers = run.plan.once(
            "refreshed", lambda: run.session.catalog.refreshed_behind(run.table)
        )
        reference_versions.take_up(run.session, run.table, readers, at)
    # not earlier than what has been closed: another delay, or another `watermark_by`, would set it back
    stood = max((before and before.frontier) or BEGINNING, log.watermark)
    mark = holders.watermark(stood, heads, delay)
    if log.quiet is not None and heads and mark > BEGINNING:
        mark += log.quiet
    observed = [*observing.maxima(run.plan, partitions), *observing.readings(run.plan)]
    of_changes = [source.address for source in run.plan.sources.values() if source.keys]

    def counts(seen: Mapping[str, Any]) -> dict[str, Any]:
        latest = {key: utc(seen[key]) for key in partitions if seen[key] is not None}
        if run.plan.by_ingestion and latest:
            # time goes on for a partition without records, too
            latest = dict.fromkeys(partitions, at)
        if holders.column and latest:
            latest |= _latest_of_values(run, holders, batch, batch_id, seen["files"])
        now = holders.advanced(heads, latest, at)
        if holders.is_full(now):
            run.plan.once("full", lambda: _warn_of_many(run.table.name, holders.column))
        return {
            "arrived": seen["good"] + seen["bad"],  # the plan keeps every row
            "frontier": holders.watermark(mark, now, delay),
            "heads": {key: (h.event_time, h.active) for key, h in now.items()},
            "readings": readings.merged(before.readings if before else {}, seen, of_changes),
        }

    new = batch_id > run.committed
    few = _prepared_rows(run, batch, partitions, observed, (mark, at)) if new else None

    def arrived(judged: DataFrame) -> DataFrame:
        return run.plan.arrived(judged, mark, at)

    known = offsets.known(run.session.settings, run.table)
    noted = {
        "topics": dict(known.ids),
        "at": log.at,
        **({"starts": known.starts} if known.starts else {}),
        # a resume quarantines the same rows, also if the registry knows more by then
        **({"unknown_schemas": [*batch.schemas.unknown]} if batch.schemas.unknown else {}),
    }
    run.write(
        few or batch.judged,
        batch_id,
        counts,
        observed,
        arrived,
        rows=log.rows,
        noted=noted,
        watermark=mark,
        inputs=log.inputs,
    )


def _prepared_rows(
    run: StreamRun,
    batch: RawRecords,
    partitions: Iterable[str],
    observed: Sequence[Column],
    instants: tuple[datetime, datetime],
) -> Few | None:
    """Returns the judged rows of a small step by the prepared plan, if there is one. `instants`: the watermark, and the time."""

    def prepared(
        inputs: Mapping[str, DataFrame],
        moments: Sequence[datetime | Moment],
        outcome: str | Observation,
    ) -> DataFrame:
        judged = run.due(run.plan.ingest(inputs))
        seen = judged.observe(outcome, *observed) if observed else judged
        watermark, at = moments
        return run.plan.arrived(seen, watermark, at)

    if (here := batch.here) is None:
        return None
    columns = {name: from_arrow_schema(rows.schema) for name, rows in here.items()}
    variant = (*partitions, *((name, of.json()) for name, of in columns.items()))
    return run.prepared.few(prepared, lambda: here, columns, instants, variant=variant)


def _latest_of_values(
    run: StreamRun, holders: Holders, batch: RawRecords, batch_id: int, files: Sequence[Any]
) -> dict[str, datetime]:
    """Returns the latest event time of each value that holds the watermark back, by the name of its head.

    It comes from the files that were just written. Those of a replayed batch may be compacted away by
    now, so its records are grouped.
    """
    if batch_id <= run.committed:
        latest = observing.latest_of_values(run.plan, batch.judged)
    else:
        path = run.session.path(run.table)
        latest = latest_times.of_files(run.table, path, files)
    return holders.named(latest)


def _warn_of_many(table: str, column: str) -> None:
    _log.warning(
        f"table={table}, watermark_by={column!r}: {MOST_VALUES:,} values hold the watermark back, which is as many as "
        "may; of more, those that have had no row for the longest time do not, and their rows may be late; name a column of "
        "fewer values"
    )


def _key(topic: str, partition: str) -> str:
    return f"{topic}-{partition}"
