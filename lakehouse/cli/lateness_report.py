"""The lateness of rows, by the arrivals that an ingest table stores: the cost of another `delay`. Needs no JVM."""

from dataclasses import dataclass
from datetime import timedelta

from lakehouse.cli import query
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.ranges import BEGINNING
from lakehouse.storage.lakehouse import Lakehouse

_STEPS = (0, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400)  # seconds


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows older than the latest event time before them by at least `behind`, but by less than that of the next bucket.

    The first bucket also has rows that are newer than it. `late` counts all rows that are older by at least `behind`: with
    `delay=behind` they may find the watermark past them, or at them, while every result would wait `behind`.
    """

    behind: timedelta
    rows: int
    late: int
    share: float
    declared: bool  # the ingest table's delay lies in this bucket


def histogram(lakehouse: Lakehouse, table: Table) -> tuple[Table, list[Bucket]]:
    """Returns the ingest table that `table` is computed from (or is), and its rows by their lag to the head at arrival.

    The head of a row is the latest event time of the earlier rows (with a marker, of the marked ones) in
    its partition of the topic, by offset, or the one by which the row was judged as it arrived, if that is later. So
    the counts do not depend on how micro-batches were cut: they are the late rows if each row were a
    micro-batch of its own, and no other cutting calls more rows late. A partition that lags the others
    makes them fewer. Raises RangeError for a table without an ingest table.
    """
    ingest = table
    while not ingest.kind.reads_sources:
        driving = lakehouse.catalog.driving_input(ingest)
        if driving is None:
            raise RangeError(
                f"table={table.name}: it reads no ingest table, so none of its rows has an arrival"
            )
        ingest = driving
    several = any(source.framing for source in lakehouse.catalog.sources_of(ingest).values())
    place = ", _arrival['place']" if several else ""
    moment = f"date_part('epoch', {ingest.event_time})"
    before = (
        f"(PARTITION BY _arrival['topic'], _arrival['partition'] ORDER BY _arrival['offset']{place} "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    )
    recorded = f"date_part('epoch', _arrival['watermark']) + {ingest.delay.total_seconds()}"
    # nothing is known of rows before all others and before any watermark: they count as on time
    marked = f"CASE WHEN {ingest.marker} THEN {moment} END" if ingest.marker else moment
    head = f"greatest(max({marked}) OVER {before}, CASE WHEN _arrival['watermark'] > '{BEGINNING:%Y-%m-%d}' THEN {recorded} END)"
    counted = ", ".join(f"count(*) FILTER (WHERE behind >= {step})" for step in _STEPS)
    rows = f"SELECT {head} - {moment} AS behind FROM {ingest.name}"
    total, *late = query.run(lakehouse, f"SELECT count(*), {counted} FROM ({rows})").rows[0]
    # the first bucket also holds rows newer than the head, which no delay calls late
    at_least = [total, *late[1:]]
    following = [*at_least[1:], 0]
    ends = [*_STEPS[1:], float("inf")]
    return ingest, [
        Bucket(
            timedelta(seconds=step),
            rows - after,
            count,
            count / total if total else 0.0,
            step <= ingest.delay.total_seconds() < end,
        )
        for step, end, rows, count, after in zip(
            _STEPS, ends, at_least, late, following, strict=True
        )
    ]
