"""Erasure: rows taken out of a record for good, and out of all that was computed from them.

The record is rewritten without them, in one commit; each table computed from it is computed again where it may hold something
of them, inputs first; then the files and versions that had them are removed. Only what is closed is erased, and what every
stream has read: the live runs go on as they were. Nothing brings the rows back, for everything is computed from the record.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import bounded, early, event_time, sinks, updates, upkeep
from lakehouse.aside import put_aside
from lakehouse.errors import JobError, RangeError
from lakehouse.event_time import ARRIVAL, EPOCH, INGESTION, PARTITION, WINDOW, Range, partition_range, text
from lakehouse.frontier import Commit, frontier
from lakehouse.lake import Lake
from lakehouse.table import Table
from lakehouse.upkeep import Place

_HOUR = timedelta(hours=1)
_EVER = datetime(9999, 1, 1, tzinfo=UTC)
_POSITION = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class Erasure:
    """What is erased, or was: how many rows, and which ranges of which tables are computed again without them."""

    table: str
    hours: Mapping[datetime, int]  # of event time -> how many rows
    quarantined: int  # of the rows put aside
    undecoded: int  # rows put aside of whose columns none can be read, so that they cannot be judged
    arrivals: tuple[str, ...]  # the record's partitions that hold them
    follow: Mapping[str, tuple[Range, ...]]

    @property
    def rows(self) -> int:
        return sum(self.hours.values())


def derived(lake: Lake, record: Table) -> list[Table]:
    """The tables that hold something computed from the record, inputs first."""
    tables = (lake.catalog.table(name) for name in lake.catalog.downstream(record))
    return [table for table in tables if next(lake.journal(table).live(), None)]


def planned(lake: Lake, record: Table, where: str) -> Erasure:
    """What `erase` would do, refusing what it would refuse; changes nothing. Raises RangeError, JobError."""
    kind = lake.catalog.kind(record)
    if kind != "record":
        raise RangeError(f"table={record.name}: it is computed ({kind} table), so its rows come back; erase them in its record")
    try:
        matched, (aside, undecoded) = lake.read(record).where(where), _put_aside(lake, record, where)
    except (AnalysisException, ParseException) as err:
        said = str(err).splitlines()[0]
        raise RangeError(f"where={where!r}: a condition on the columns of {record.name} ({said}); correct it") from err
    moment = lake.catalog.event_time(record)
    found = matched.groupBy(PARTITION, F.date_trunc("hour", moment).alias("hour")).count().collect()
    hours: dict[datetime, int] = {}
    for each in found:
        hour = each["hour"].astimezone(UTC)
        hours[hour] = hours.get(hour, 0) + each["count"]
    held = [each[PARTITION] for each in aside.collect()]
    arrivals = sorted({each[PARTITION] for each in found} | set(held))
    erasure = Erasure(record.name, hours, len(held), undecoded, tuple(arrivals), following(lake, record, hours))
    _check_closed(lake, record, erasure)
    _check_read(lake, record, erasure)
    return erasure


def erase(lake: Lake, record: Table, where: str) -> Erasure:
    """Erases the rows of the record that meet the condition. Run again, it does what is left, after a crash say."""
    erasure = planned(lake, record, where)
    if erasure.arrivals:
        _rewrite(lake, record, where, erasure)
    tables = {table.name: table for table in derived(lake, record)}
    for name, spans in erasure.follow.items():
        for span in spans:
            bounded.backfill(lake, tables[name], span)
    _forget(lake, record, list(erasure.arrivals))
    for name, spans in erasure.follow.items():
        _forget(lake, tables[name], [p for span in spans for p in span.partitions(tables[name].grain)])
    return erasure


def _put_aside(lake: Lake, record: Table, where: str) -> tuple[DataFrame, int]:
    """The rows put aside that meet the condition as far as their value can be decoded: partition and position of each."""
    rows = put_aside(lake, record, judged=False)
    known = [F.col(c).cast("string") for c in rows.columns if not c.startswith("_") and c != INGESTION]
    undecoded = rows.where(F.coalesce(*known).isNull()).count()
    position = (F.col(f"{ARRIVAL}.{name}").alias(name) for name in _POSITION)
    return rows.where(where).select(PARTITION, *position), undecoded


def following(lake: Lake, record: Table, hours: Iterable[datetime]) -> dict[str, tuple[Range, ...]]:
    """The ranges to compute again of each table, and what it has not followed of earlier rewrites and has closed since."""
    spans: dict[str, list[Range]] = {record.name: [Range(hour, hour + _HOUR) for hour in sorted(hours)]}
    for table in derived(lake, record):
        driving = lake.catalog.driving_input(table)
        ahead = frontier(lake.settings, table) or EPOCH
        waiting = (partition_range(p, table.grain) for p in updates.outdated(lake.settings, lake.catalog, table))
        reached = [event_time.reached(table, span) for span in spans[driving.name]] + [w for w in waiting if w.end <= ahead]
        touched = [_extended(lake, table, span) for span in joined(sorted(reached, key=lambda span: span.start))]
        partitions = {p for span in touched for p in span.partitions(table.grain)}
        spans[table.name] = joined(partition_range(p, table.grain) for p in sorted(partitions))
    return {name: tuple(found) for name, found in spans.items() if found and name != record.name}


def _extended(lake: Lake, table: Table, span: Range) -> Range:
    """The span up to the ends of the sessions that it reaches into."""
    if table.window is None or table.window.kind != "session":
        return span
    # by the input as well: of a session that goes on nothing is stored yet
    computed = bounded.compute(lake, table, Range(span.start, _EVER)).judged.select(WINDOW)
    inside = (F.col(f"{WINDOW}.start") < F.lit(span.end)) & (F.col(f"{WINDOW}.end") > F.lit(span.start))
    latest = lake.read(table).select(WINDOW).unionByName(computed).where(inside).agg(F.max(f"{WINDOW}.end")).head()[0]
    return Range(span.start, max(span.end, latest.astimezone(UTC))) if latest else span


def joined(spans: Iterable[Range]) -> list[Range]:
    """Ranges given by their starts, those that touch as one: each is a commit."""
    found: list[Range] = []
    for span in spans:
        if found and span.start <= found[-1].end:
            span = Range(found[-1].start, max(found.pop().end, span.end))
        found.append(span)
    return found


def _check_closed(lake: Lake, record: Table, erasure: Erasure) -> None:
    """Raises RangeError if a live run still writes where the rows are, or where they are cannot be told."""
    moment = lake.catalog.event_time(record)
    for table in derived(lake, record):
        if (own := lake.catalog.event_time(table)) != moment:
            raise RangeError(
                f"table={table.name}, event_time={own}: rows of {record.name} are followed by its {moment}, and may lie anywhere "
                f"in {table.name}; give both tables one event time"
            )
        spans, ahead = erasure.follow.get(table.name, ()), frontier(lake.settings, table) or EPOCH
        if spans and spans[-1].end > ahead:
            raise RangeError(
                f"table={record.name}: {table.name} has something of these rows in what closes at {text(spans[-1].end)}, and its "
                f"frontier is {text(ahead)}; erase them then, or restrict --where to older ones"
            )
    if erasure.arrivals and (over := partition_range(erasure.arrivals[-1], record.grain).end) > datetime.now(UTC):
        raise RangeError(
            f"table={record.name}, arrived until {text(over)}: the live run still writes to that {record.grain}; erase them then"
        )


def _check_read(lake: Lake, record: Table, erasure: Erasure) -> None:
    """Raises JobError if a stream may still read files that will be gone."""
    touched = {record.name: set(erasure.arrivals)}
    for name, spans in erasure.follow.items():
        touched[name] = {p for span in spans for p in span.partitions(lake.catalog.table(name).grain)}
    for name, partitions in touched.items():
        table = lake.catalog.table(name)
        if lake.catalog.kind(table) == "window":
            continue  # no stream reads one
        last = upkeep.last_streamed(lake.path(table), partitions) if partitions else -1
        behind = {w: v for w, v in upkeep.needed(lake.settings, lake.catalog, table).items() if v <= last}
        if behind:
            raise JobError(
                f"table={name}, version={last}: {', '.join(sorted(behind))} may still read these rows from it (once more, after "
                "a restart); run this again when its stream has gone on by two micro-batches"
            )


def _rewrite(lake: Lake, record: Table, where: str, erasure: Erasure) -> None:
    """The record and its quarantine without the rows; neither commit nor journal names the condition, which may tell who."""
    arrivals = list(erasure.arrivals)
    metadata = {"run": uuid.uuid4().hex, "fingerprint": record.fingerprint, "erased": erasure.rows}
    if erasure.quarantined:
        stored = lake.read(record, side="quarantine").where(F.col(PARTITION).isin(arrivals))
        gone = _put_aside(lake, record, where)[0].select(F.struct(*_POSITION).alias("_position"))
        position = F.struct(*(F.col(f"{ARRIVAL}.{name}") for name in _POSITION))
        kept = stored.withColumn("_position", position).join(F.broadcast(gone), "_position", "left_anti").drop("_position")
        sinks.replace(kept, lake.path(record, "quarantine"), arrivals, metadata)
    if not erasure.rows:
        return
    # noted before it is done: of a run that is killed in between the next finds no rows, but what was computed from them
    version = sinks.version(lake.path(record)) + 1
    for span in joined(Range(hour, hour + _HOUR) for hour in sorted(erasure.hours)):
        count = sum(n for hour, n in erasure.hours.items() if span.start <= hour < span.end)
        commit = Commit(
            table=record.name, role="bounded", generation=0, batch=0, version=version, at=datetime.now(UTC),
            fingerprint=record.fingerprint, arrived=count, start=span.start, end=span.end,
        )  # fmt: skip
        lake.journal(record).append(commit)
    kept = lake.read(record).where(F.col(PARTITION).isin(arrivals) & ~F.coalesce(F.expr(where), F.lit(False)))
    sinks.replace(kept, lake.path(record), arrivals, metadata)


def _forget(lake: Lake, table: Table, partitions: list[str]) -> None:
    """Removes what only older versions had of closed partitions, and those versions as far as nobody needs them."""
    if not partitions:
        return
    for place in upkeep.places(lake.settings, lake.catalog, table):
        sinks.purge(place.path, partitions)
        upkeep.forget(place)
    if table.early and (lake.path(table, "early") / "_delta_log").is_dir():
        _forget_early(lake, table, partitions)


def _forget_early(lake: Lake, table: Table, partitions: list[str]) -> None:
    """Early results are of what is open and show nothing of it, but those that a killed job left, and older versions."""
    if not lake.read(table, side="early").where(F.col(PARTITION).isin(partitions)).isEmpty():
        early.settle(lake, table)
    path = lake.path(table, "early")
    sinks.tidy(path, 0)
    upkeep.forget(Place(f"{table.name}__early", path, lambda _: False, {}))
