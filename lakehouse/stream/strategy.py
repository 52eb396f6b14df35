"""The choice of the engine that fills a table as its input grows: made here, and nowhere else.

    ingest    steps of our own: ranges of offsets of its topics
    append    steps of our own: the function over the rows that came
    close     steps of our own: the batch function over each range as it closes (`closes_ranges`)
    versions  steps of our own: the versions of the keys that changed
    merge     steps of our own: sums, counts and bounds of the rows that came, with those that a keyed table holds
    groups    steps of our own: the rows of a keyed table that belong to what changed in its inputs
    state     a query of Spark's, which keeps the state: long windows, sessions, another aggregate by keys

A stepped table keeps its position in its own commits; only Spark's queries have a checkpoint beside
the table.
"""

from typing import Literal

from lakehouse.declare.table import Table
from lakehouse.ranges import EPOCH
from lakehouse.storage.session import Session
from lakehouse.transform import keeping, plan
from lakehouse.transform.analysis import shapes
from lakehouse.transform.plan import Plan

Strategy = Literal["ingest", "append", "close", "versions", "merge", "groups", "state"]


def strategy(session: Session, table: Table) -> Strategy:
    """Returns the engine that fills a table, which is not a reference table."""
    kind, step = table.kind, plan.plan_of(session, table)
    if kind.reads_sources:
        return "ingest"
    if kind.keeps_versions:
        return "versions"
    if kind.keeps_latest:
        if not keeping.is_one_aggregate(step):
            return "groups"
        return "merge" if keeping.merging(step) else "state"
    if closes_ranges(session, step):
        return "close"
    return "append" if kind.is_row_by_row else "state"


def closes_ranges(session: Session, step: Plan) -> bool:
    """Returns True if the stream computes each range as it closes, without Spark's operators and their state.

    Spark closes windows by the watermarks that rows carry, so these must say how far the input is; and its own watermark
    begins in 1970.
    """
    table, window = step.table, step.table.window
    if window and (
        window.short or session.catalog.follows_frontiers(table) or _may_precede(session, table)
    ):
        return True
    return in_batch_only(session, step)


def _may_precede(session: Session, table: Table) -> bool:
    """Returns True if event times may be as early as Spark's first watermark, against which it would drop them."""
    return any(s.min_event_time <= EPOCH for s in session.catalog.origins_of(table))


def in_batch_only(session: Session, step: Plan) -> bool:
    """Returns True if Spark can do what the table does only in batch, or not exactly in a stream."""
    table, window = step.table, step.table.window
    if window is None:
        return bool(table.context or table.as_of or table.ttl)
    if window.kind == "count":
        return True
    rows = step.on_no_rows()
    return shapes.needs_whole_windows(rows) or (
        window.kind == "session" and shapes.groups_by_window_alone(rows)
    )
