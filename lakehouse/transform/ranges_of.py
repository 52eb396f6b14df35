"""The range of an input that a range of a table is computed from, and the range that a change of an input reaches."""

from datetime import datetime, timedelta

from lakehouse.declare.table import Table
from lakehouse.ranges import PARTITION_LENGTHS, Range, floor, widened


def context(span: Range, table: Table) -> Range:
    """Returns the range of input event time that a range of output is computed from; for sessions, a first guess."""
    window = table.window
    if table.context:
        return Range(span.start - table.context.before, span.end + table.context.after)
    if table.ttl:  # a state is kept at the start of a partition, if at all
        return Range(floor(span.start, PARTITION_LENGTHS[table.partition_by]), span.end)
    if window is None:
        return span
    if window.kind == "count":
        return Range(floor(span.start, PARTITION_LENGTHS[table.partition_by]), span.end)
    # a row at the very end joins a session that would end there
    if window.kind == "session":
        return Range(span.start - window.reach, span.end + timedelta(microseconds=1))
    first = window.first_with(span.start).start
    return Range(first, max(first + timedelta(microseconds=1), window.last_end(span.end)))


def closes(table: Table, span: Range) -> bool:
    """Returns True if a window of the table may end in the span."""
    window = table.window
    return (
        window is None
        or not window.regular
        or window.last_end(span.end) > window.last_end(span.start)
    )


def reached(table: Table, span: Range, until: datetime | None = None) -> Range:
    """Returns the range of `table` that a range of its input may change.

    The end of a session is found when it is computed. A lasting state may affect all later rows; of these, the
    range up to `until` counts.
    """
    if table.state_ttl:
        return Range(span.start, max(span.end, until or span.end))
    if table.deduplicate:
        return widened(span, table.deduplicate.within)
    if table.context:
        return Range(span.start - table.context.after, span.end + table.context.before)
    if table.window is None or table.window.within(PARTITION_LENGTHS[table.partition_by]):
        return span
    # a session may have ended before, and go on now
    before = table.window.size if table.window.kind == "session" else timedelta(0)
    return Range(span.start - before, span.end + table.window.reach)
