"""Which range of its input a range of a table is computed from, and which range a change of the input reaches. Without Spark."""

from datetime import datetime, timedelta

from lakehouse.declare.table import Table
from lakehouse.ranges import PARTITION_LENGTHS, Range, floor, widened


def context(span: Range, table: Table) -> Range:
    """The range of input event time that a range of output is computed from.

    For sessions, where to start looking.
    """
    window = table.window
    if table.context:
        return Range(span.start - table.context.before, span.end + table.context.after)
    if table.ttl:  # where a state is kept, if one is
        return Range(floor(span.start, PARTITION_LENGTHS[table.partition_by]), span.end)
    if window is None:
        return span
    if window.kind == "count":
        return Range(floor(span.start, PARTITION_LENGTHS[table.partition_by]), span.end)
    # a row at the very end joins a session that ends there, so that it does not end there
    if window.kind == "session":
        return Range(span.start - window.reach, span.end + timedelta(microseconds=1))
    first = window.first_with(span.start).start
    return Range(first, max(first + timedelta(microseconds=1), window.last_end(span.end)))


def closes(table: Table, span: Range) -> bool:
    """Whether a window of the table may end in the span."""
    window = table.window
    return (
        window is None
        or not window.regular
        or window.last_end(span.end) > window.last_end(span.start)
    )


def reached(table: Table, span: Range, until: datetime | None = None) -> Range:
    """What a range of its input may change in `table`.

    How far a session goes on is found when it is computed. A state that lasts may go on in all that
    comes after; of that, what is computed before `until`.
    """
    if table.state_ttl:
        return Range(span.start, max(span.end, until or span.end))
    if table.deduplicate:
        return widened(span, table.deduplicate.within)
    if table.context:
        return Range(span.start - table.context.after, span.end + table.context.before)
    if table.window is None or table.window.within(PARTITION_LENGTHS[table.partition_by]):
        return span
    # it may have ended before, and does not now
    before = table.window.size if table.window.kind == "session" else timedelta(0)
    return Range(span.start - before, span.end + table.window.reach)
