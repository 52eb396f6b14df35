"""How late rows came, from what an ingest table stores of their arrival: what another `delay` would have cost. No JVM."""

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
    """Rows that came `behind` the latest event time before them or more, but less than the next bucket's.

    The first bucket has those that came ahead of it, too. `late` of all rows come so far behind or
    further: with `delay=behind` they may find the watermark past them, or at them, while every result would wait `behind`.
    """

    behind: timedelta
    rows: int
    late: int
    share: float
    declared: bool  # the ingest table's delay lies in this bucket


def histogram(lakehouse: Lakehouse, table: Table) -> tuple[Table, list[Bucket]]:
    """The ingest table that `table` is computed from (or is), and how far behind its head at their arrival its rows were.

    The head is the latest event time of the rows (with a marker, of the marked ones) before it in its
    partition of the topic, in the order of their offsets, or the one by which it was judged as it arrived, if that is later. So
    what is counted does not depend on how micro-batches were cut: it is what would be late if each
    row were a micro-batch of its own, and no other cutting calls more rows late. A partition that
    lags behind others makes it fewer. Raises RangeError for a table without an ingest table.
    """
    ingest = table
    while not ingest.kind.reads_sources:
        driving = lakehouse.catalog.driving_input(ingest)
        if driving is None:
            raise RangeError(
                f"table={table.name}: no ingest table is behind it, so none of its rows has an arrival"
            )
        ingest = driving
    several = any(source.framing for source in lakehouse.catalog.sources_of(ingest).values())
    place = ", _arrival['place']" if several else ""
    moment = f"date_part('epoch', {ingest.event_time})"
    before = (
        f"(PARTITION BY _arrival['topic'], _arrival['partition'] ORDER BY _arrival['offset']{place} "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    )
    judged = f"date_part('epoch', _arrival['watermark']) + {ingest.delay.total_seconds()}"
    # of the rows before any other, and before any watermark, nothing is known: they count as on
    # time
    marked = f"CASE WHEN {ingest.marker} THEN {moment} END" if ingest.marker else moment
    head = f"greatest(max({marked}) OVER {before}, CASE WHEN _arrival['watermark'] > '{BEGINNING:%Y-%m-%d}' THEN {judged} END)"
    counted = ", ".join(f"count(*) FILTER (WHERE behind >= {step})" for step in _STEPS)
    rows = f"SELECT {head} - {moment} AS behind FROM {ingest.name}"
    total, *late = query.run(lakehouse, f"SELECT count(*), {counted} FROM ({rows})").rows[0]
    # the first bucket holds what came ahead of the head, too, which no delay calls late
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
