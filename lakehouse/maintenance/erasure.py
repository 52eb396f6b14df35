"""Erasure: rows taken out of an ingest table for good, and out of all that was computed from them.

The ingest table is rewritten without them, in one commit. Each table computed from it is computed
again where it may hold something of them, inputs first. Then the files and versions that had them are
removed. Rows are erased only if they are closed and every stream has read them, so the streams go on
as before. Nothing brings the rows back, because everything is computed from the ingest table.
"""

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.batch import lookups
from lakehouse.declare.columns import INGESTION, PARTITION, quoted
from lakehouse.declare.table import Table
from lakehouse.errors import JobError, RangeError
from lakehouse.maintenance import needs, propagate, retention
from lakehouse.maintenance.replay_quarantine import (
    arrival_position,
    of_other_topics,
    quarantined_rows,
    without,
)
from lakehouse.maintenance.retention import Place
from lakehouse.ranges import Range, partition_range, text
from lakehouse.storage.delta import delta_log, delta_writer
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import log_tables, report_files
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.session import Session
from lakehouse.stream.engines import early_results
from lakehouse.transform.plan import plan_of, without_expectations

_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Erasure:
    """An erasure, planned or done: the number of rows, and the ranges of each table that are computed again without them."""

    table: str
    hours: Mapping[datetime, int]  # hour of event time -> how many rows
    quarantined: int  # how many quarantined rows
    # quarantined rows without a readable column, which cannot be judged
    undecoded: int
    arrivals: tuple[str, ...]  # the ingest table's partitions that hold them
    follow: Mapping[str, tuple[Range, ...]]

    @property
    def rows(self) -> int:
        return sum(self.hours.values())


def planned(session: Session, ingest: Table, where: str) -> Erasure:
    """Returns the plan of `erase`, and refuses what that would refuse. Raises RangeError, JobError."""
    kind = ingest.kind
    if not kind.reads_sources:
        raise RangeError(
            f"table={ingest.name}: the rows of a {kind} table are computed again and would come back; erase "
            "them in its ingest table"
        )
    if kept := _keeping(session, ingest):
        raise RangeError(
            f"table={ingest.name}: {', '.join(kept)} keep what its rows added up to, and what was joined with it may be of any "
            "later time; erasing does not reach these yet, so nothing was erased"
        )
    downstream = map(session.catalog.table, session.catalog.downstream(ingest))
    if lasting := [t.name for t in downstream if t.state_ttl]:
        raise RangeError(
            f"table={ingest.name}: {', '.join(lasting)} keep a state (ttl=) that its rows went into, also where a stream still "
            "writes; erasing does not reach these yet, so nothing was erased"
        )
    try:
        matched = session.read(ingest).where(where)
        quarantined, undecoded = _quarantine_rows(session, ingest, where)
    except (AnalysisException, ParseException) as err:
        first_line = str(err).splitlines()[0]
        raise RangeError(
            f"where={where!r}: a condition on the columns of {ingest.name} ({first_line}); correct it"
        ) from err
    moment = session.catalog.event_time(ingest)
    by_hour = matched.groupBy(PARTITION, F.date_trunc("hour", moment).alias("hour"))
    counts = by_hour.count().collect()
    hours: Counter[datetime] = Counter()
    for row in counts:
        hours[row["hour"].astimezone(UTC)] += row["count"]
    held = [row[PARTITION] for row in quarantined.collect()]
    arrivals = tuple(sorted({row[PARTITION] for row in counts} | set(held)))
    follow = propagate.spans(session, ingest, hours)
    erasure = Erasure(ingest.name, dict(hours), len(held), undecoded, arrivals, follow)
    _check_over(ingest, erasure)
    _check_expired(session, ingest, erasure)
    _check_read(session, ingest, erasure)
    return erasure


def erase(session: Session, ingest: Table, where: str) -> Erasure:
    """Erases the rows of the ingest table that meet the condition.

    Another run completes an erasure that a crash cut short. Raises RangeError, JobError.
    """
    with propagate.alone(session, ingest):
        erasure = planned(session, ingest, where)
        if erasure.arrivals:
            _rewrite(session, ingest, where, erasure)
        propagate.follow(session, erasure.follow)
        for name, spans in erasure.follow.items():
            table = session.catalog.table(name)
            for span in spans if table.lookup else ():
                lookups.forget(session, table, lookups.questions(session, table, span), span)
        for table, partitions in _touched(session, ingest, erasure):
            _forget(session, table, partitions)
    return erasure


def _touched(
    lakehouse: Lakehouse, ingest: Table, erasure: Erasure
) -> Iterator[tuple[Table, list[str]]]:
    """Yields each table that holds something of the rows, with the partitions that have it."""
    yield ingest, list(erasure.arrivals)
    for name, spans in erasure.follow.items():
        table = lakehouse.catalog.table(name)
        yield table, [p for span in spans for p in span.partitions(table.partition_by)]


def _quarantine_rows(session: Session, ingest: Table, where: str) -> tuple[DataFrame, int]:
    """Returns partition and position of the quarantined rows that meet the condition, and the number of undecodable rows."""
    rows = quarantined_rows(session, without_expectations(plan_of(session, ingest)))
    names = [c for c in rows.columns if not c.startswith("_") and c != INGESTION]
    readable = F.coalesce(*(F.col(quoted(name)).cast("string") for name in names))
    undecoded = rows.where(readable.isNull()).count()
    undecoded += sum(of_other_topics(session, ingest).values())
    return rows.where(where).select(PARTITION, arrival_position(rows)), undecoded


def _keeping(lakehouse: Lakehouse, ingest: Table) -> list[str]:
    """Returns the keyed and versioned tables that keep something of each row of the ingest table.

    A table whose rows expire (`ttl`) is among them only if a table that is not keyed or versioned reads it.
    """
    names = set(lakehouse.catalog.downstream(ingest))
    below = [table for table in lakehouse.catalog if table.name in names]  # inputs come first
    expiring: set[str] = set()
    for table in (t for t in below if t.kind.is_upserted):
        if table.ttl or {ingest.name, *names}.isdisjoint(set(table.inputs) - expiring):
            expiring.add(table.name)
    kept = {t.name for t in below if t.kind.is_upserted and t.name not in expiring}
    joined = (t for t in below if not t.kind.is_upserted)
    return sorted(kept | {name for t in joined for name in t.inputs if name in expiring})


def _check_expired(lakehouse: Lakehouse, ingest: Table, erasure: Erasure) -> None:
    """Raises RangeError if rows still count for a keyed table with `ttl`."""
    spans = {ingest.name: [Range(hour, hour + _HOUR) for hour in erasure.hours], **erasure.follow}
    for table in lakehouse.catalog.keyed:
        ends = [span.end for t in table.inputs for span in spans.get(t, ())]
        ahead = frontier(lakehouse.settings, table)
        if table.ttl and ends and ahead and max(ends) > ahead - table.ttl:
            raise RangeError(
                f"table={ingest.name}: rows before {text(max(ends))} may count for {table.name} (ttl={table.ttl}), and its "
                f"frontier is {text(ahead)}; try again when it is past {text(max(ends) + table.ttl)}, or with older rows only"
            )


def _check_over(ingest: Table, erasure: Erasure) -> None:
    """Raises RangeError if rows still arrive where the rows are."""
    if not erasure.arrivals:
        return
    over = partition_range(erasure.arrivals[-1], ingest.partition_by).end
    if over > datetime.now(UTC):
        raise RangeError(
            f"table={ingest.name}, arrived until {text(over)}: the stream still writes to that hour; erase the rows after it"
        )


def _check_read(lakehouse: Lakehouse, ingest: Table, erasure: Erasure) -> None:
    """Raises JobError if a stream may still read files that will be gone."""
    for table, partitions in _touched(lakehouse, ingest, erasure):
        last = delta_log.last_streamed(lakehouse.path(table), set(partitions)) if partitions else -1
        reading = needs.needed(lakehouse, table)
        if table.kind.is_windowed:
            reading.pop(needs.OWN, None)  # a replayed batch is computed from its input
        behind = [who for who, version in reading.items() if version <= last]
        if behind:
            raise JobError(
                f"table={table.name}, version={last}: {', '.join(sorted(behind))} may still read these rows from it (once "
                "more, after a restart); run this again when its stream has gone on by two micro-batches"
            )


def _rewrite(session: Session, ingest: Table, where: str, erasure: Erasure) -> None:
    """Rewrites the ingest table and its quarantine without the rows. No log names the condition: it may name a person."""
    arrivals = list(erasure.arrivals)
    metadata = {
        "run": uuid.uuid4().hex,
        "code_version": ingest.code_version,
        "erased": erasure.rows,
    }
    if erasure.quarantined:
        stored = session.read(ingest, side="quarantine").where(F.col(PARTITION).isin(arrivals))
        gone = _quarantine_rows(session, ingest, where)[0].select("_position")
        kept = without(stored, F.broadcast(gone))
        delta_writer.replace(kept, session.path(ingest, "quarantine"), arrivals, metadata)
    if not erasure.rows:
        return
    # noted before the rewrite: after a kill in between, the next run finds no rows any more, but it
    # must still find the tables computed from them
    version = delta_writer.version(session.path(ingest)) + 1
    propagate.note(session, ingest, version, erasure.hours, written=False)
    stays = ~F.coalesce(F.expr(where), F.lit(False))
    kept = session.read(ingest).where(F.col(PARTITION).isin(arrivals) & stays)
    delta_writer.replace(kept, session.path(ingest), arrivals, metadata)


def _forget(session: Session, table: Table, partitions: list[str]) -> None:
    """Removes the files of closed partitions that only older versions have, and those versions that no reader needs."""
    if not partitions:
        return
    log_tables.flush(session.settings, [table])  # before what records commits is cut
    for place in retention.places(session, table):
        delta_writer.purge(place.path, partitions)
        retention.forget(place)
    if table.kind.is_report:
        report_files.forget(session.settings, table, partitions)
    if table.early_results and delta_log.exists(session.path(table, "early")):
        _forget_early(session, table, partitions)


def _forget_early(session: Session, table: Table, partitions: list[str]) -> None:
    """Removes closed rows of the early results, which a killed job may have left, and older versions, which may have them."""
    if not session.read(table, side="early").where(F.col(PARTITION).isin(partitions)).isEmpty():
        early_results.settle(session, table)
    path = session.path(table, "early")
    delta_writer.tidy(path, 0)
    retention.forget(Place(f"{table.name}__early", path, lambda _: False, {}))
