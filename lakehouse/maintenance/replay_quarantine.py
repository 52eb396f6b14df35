"""Replay: quarantined rows of an ingest table, judged again by its present declaration, and written if they are good.

It is used after a parser was corrected or an expectation changed. The rows go through the same
function as at their arrival. They keep that arrival, so they are as late as they were. They enter as
rows of a batch run, so no stream takes them for new. Tables computed from their hours are computed
again, inputs first.
"""

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.declare.columns import (
    ARRIVAL,
    HEADERS,
    INGESTION,
    ORIGIN,
    PARTITION,
    PLACE,
    REASON,
    RECORD,
    kind_of_reason,
)
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.maintenance import propagate
from lakehouse.ranges import BEGINNING, EPOCH, Range
from lakehouse.storage.delta import delta_log, delta_writer
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.session import Session
from lakehouse.transform import arrival_fields, creation, ranges_of
from lakehouse.transform.checks import judged_rows
from lakehouse.transform.decoding import schemas
from lakehouse.transform.plan import Plan, plan_of

_HOUR = timedelta(hours=1)
# with the time, because a topic that was made again repeats its offsets
POSITION = (*arrival_fields.POSITION, "time")


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay, planned or done: the numbers of rows replayed and still quarantined, and the ranges of each table that
    are computed again.
    """

    table: str
    hours: Mapping[datetime, int]  # hour of event time -> how many rows
    waiting: int  # good now, but a table that reads them has not closed yet, or their hour of arrival is not over
    bad: Mapping[str, int]  # reason -> rows that stay quarantined
    arrivals: tuple[str, ...]  # the ingest table's partitions that they are written to
    follow: Mapping[str, tuple[Range, ...]]

    @property
    def rows(self) -> int:
        return sum(self.hours.values())


def planned(session: Session, ingest: Table) -> Replay:
    """Returns the plan of `replay`; changes nothing. Raises RangeError."""
    return _planned(session, ingest, _judged(session, ingest), _taken(session, ingest))


def replay(session: Session, ingest: Table) -> Replay:
    """Writes the rows that are good now to the table. Another run, after a crash, does the rest: no row is written twice."""
    with propagate.alone(session, ingest):
        creation.create(session, ingest)  # refuses other columns than those on disk
        judged, is_taken = _judged(session, ingest).persist(), _taken(session, ingest)
        try:
            done = _planned(session, ingest, judged, is_taken)
            if done.rows:
                _put_in(session, ingest, judged.where(is_taken), done)
        finally:
            judged.unpersist()
        propagate.follow(session, done.follow)
    return done


def _judged(session: Session, ingest: Table) -> DataFrame:
    if not (kind := ingest.kind).reads_sources:
        raise RangeError(
            f"table={ingest.name}: a backfill judges the quarantined rows of a {kind} table again; run `lakehouse backfill`"
        )
    return quarantined_rows(session, plan_of(session, ingest)).withColumn(ORIGIN, F.lit("batch"))


def _taken(lakehouse: Lakehouse, ingest: Table) -> Column:
    """Returns a condition: the row is good, and its hour of arrival and all that streams compute from it are closed."""
    derived = [t for t in propagate.derived(lakehouse, ingest) if t.kind.is_streamed]
    frontiers = (frontier(lakehouse.settings, table) or BEGINNING for table in derived)
    closed = min(frontiers, default=datetime.now(UTC))
    hour = Range(EPOCH, EPOCH + _HOUR)
    reaches = (ranges_of.reached(table, hour).end - hour.end for table in derived)
    length = timedelta(days=1) if any(t.partition_by == "day" for t in derived) else _HOUR
    over = ranges.floor(closed - max(reaches, default=timedelta(0)), length)
    now = datetime.now(UTC).strftime(ranges.partition_format(ingest.partition_by))
    is_over = F.col(lakehouse.catalog.event_time(ingest)) < F.lit(over)
    return F.col(REASON).isNull() & is_over & (F.col(PARTITION) < now)


def _planned(session: Session, ingest: Table, judged: DataFrame, is_taken: Column) -> Replay:
    hour = F.date_trunc("hour", session.catalog.event_time(ingest))
    grouped = judged.groupBy(
        F.when(is_taken, hour).alias("hour"),
        F.when(is_taken, F.col(PARTITION)).alias("arrived"),
        F.col(REASON).alias("reason"),
    )
    counts = grouped.count().collect()
    hours: Counter[datetime] = Counter()
    bad: Counter[str] = Counter()
    for row in counts:
        if row["hour"]:
            hours[row["hour"].astimezone(UTC)] += row["count"]
        if row["reason"]:
            bad[kind_of_reason(row["reason"])] += row["count"]
    for topic, rows in of_other_topics(session, ingest).items():
        bad[f"topic {topic} is no input of the table any more"] += rows
    waiting = sum(row["count"] for row in counts if not row["hour"] and not row["reason"])
    arrivals = tuple(sorted({row["arrived"] for row in counts if row["arrived"]}))
    follow = propagate.spans(session, ingest, hours)
    return Replay(ingest.name, dict(hours), waiting, dict(bad), arrivals, follow)


def _put_in(session: Session, ingest: Table, rows: DataFrame, replay: Replay) -> None:
    """Writes the rows, then the commit log's lines, and then removes the rows from the quarantine.
    After a crash the next run does the rest."""
    arrivals, run = list(replay.arrivals), uuid.uuid4().hex
    metadata = {"run": run, "code_version": ingest.code_version, "replayed": replay.rows}
    present = session.read(ingest).where(
        F.col(PARTITION).isin(arrivals) & (F.col(ORIGIN) == "batch")
    )
    present = present.select(arrival_position(present))
    missing = without(judged_rows.good(rows), present)
    version = delta_writer.append(missing, session.path(ingest), f"batch:{run}", 0, metadata)
    propagate.note(session, ingest, version, replay.hours, written=True)
    quarantined = session.read(ingest, side="quarantine").where(F.col(PARTITION).isin(arrivals))
    kept = without(quarantined, rows.select(arrival_position(rows)))
    delta_writer.replace(kept, session.path(ingest, "quarantine"), arrivals, metadata)


def arrival_position(rows: DataFrame) -> Column:
    """Returns the place of each row's arrival, as one column `_position`."""
    return F.struct(*arrival_fields.places(rows, POSITION)).alias("_position")


def without(rows: DataFrame, gone: DataFrame) -> DataFrame:
    """Returns the rows whose `arrival_position` is not in the column `_position` of `gone`."""
    placed = rows.withColumn("_position", arrival_position(rows))
    return placed.join(gone, "_position", "left_anti").drop("_position")


def quarantined_rows(session: Session, step: Plan) -> DataFrame:
    """Returns the quarantined rows as the present declaration judges them: `_arrival` and `_partition` with the columns.

    The time of arrival replaces a record's own timestamp in the check for event times too far ahead.
    Raises RangeError if the quarantine is gone, RegistryAway if the registry is asked for a schema and does not answer.
    """
    ingest = step.table
    stored = _quarantine(session, ingest)
    of = {"partition": "partition", "offset": "offset", "timestamp": "time"}
    if PLACE in step.further:
        of[PLACE] = PLACE
    position = {name: F.col(f"{ARRIVAL}.{stored_name}") for name, stored_name in of.items()}
    sent = ["key", "value", *(name for name in (HEADERS,) if name in step.further)]
    parts = []
    for name, source in step.sources.items():
        own = stored.where(F.col(f"{ARRIVAL}.topic") == source.address)
        raw = own.select(*sent, *(c.alias(n) for n, c in position.items()))
        records = {n: raw if n == name else raw.limit(0) for n in step.sources}
        written_by = schemas.of_records(session, ingest, {name: source}, records)
        rows = step.ingest(records, written_by, timed=True)
        arrived = own.select(
            *(c.alias(f"{RECORD}_{n}") for n, c in position.items()), ARRIVAL, PARTITION
        )
        placed = rows.join(arrived, [f"{RECORD}_{n}" for n in position])
        parts.append(placed.drop(f"{RECORD}_timestamp"))
    judged = reduce(DataFrame.unionByName, parts)
    return judged.withColumn(INGESTION, F.col(f"{ARRIVAL}.time")) if step.by_ingestion else judged


def of_other_topics(session: Session, ingest: Table) -> dict[str, int]:
    """Returns topic -> quarantined rows, for topics that the ingest table reads no more: no declaration can parse them."""
    read = [source.address for source in session.catalog.sources_of(ingest).values()]
    topic = F.col(f"{ARRIVAL}.topic")
    others = _quarantine(session, ingest).where(~topic.isin(read))
    counts = others.groupBy(topic.alias("topic")).count().collect()
    return {row["topic"]: row["count"] for row in counts}


def _quarantine(session: Session, ingest: Table) -> DataFrame:
    if not delta_log.exists(session.path(ingest, "quarantine")):
        raise RangeError(
            f"table={ingest.name}, quarantine={session.path(ingest, 'quarantine')}: the folder is gone, and the quarantined rows "
            "with it; restore it, or start the job of the table, which makes an empty one"
        )
    return session.read(ingest, side="quarantine")
