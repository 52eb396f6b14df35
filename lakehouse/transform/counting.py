"""The rows that count for a keyed table at its frontier F: those from F less `ttl` on, and with `final_rows` before F.

A late row is final once the frontier has passed the watermark in force when it arrived, because a change is valid from
there on (`versions.changes`). Later rows never change what is before the frontier.
"""

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.columns import ARRIVAL
from lakehouse.declare.table import Table
from lakehouse.ranges import Range
from lakehouse.transform import lateness

EVER = Range(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
_INSTANT = timedelta(microseconds=1)


def span_of(table: Table, frontier: datetime) -> Range | None:
    """Returns the event times whose rows count for a keyed table with that frontier; None if all rows do."""
    if not table.counts_by_time:
        return None
    since = frontier - table.ttl if table.ttl else EVER.start
    return Range(since, frontier if table.final_rows else EVER.end)


def arrived_before(span: Range) -> datetime:
    """Returns the watermark before which a row must have arrived to count in the span."""
    return span.end - _INSTANT if span.end < EVER.end else EVER.end


def counted(rows: DataFrame, source: Table, event_time: str, span: Range) -> DataFrame:
    """Returns the stored rows of an input that count in the span."""
    rows = rows.where(lateness.between(lateness.instant_of(source.window, event_time), span))
    if source.window or span.end == EVER.end:
        return rows  # results of windows are never late
    return rows.where(F.col(f"{ARRIVAL}.watermark") < F.lit(arrived_before(span)))
