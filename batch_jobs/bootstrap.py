"""The beginning of a new table over history: a batch run up to its handover."""

from batch_jobs.backfill import run as run
from batch_jobs.planning import Backfill
from batch_jobs.planning import plan as plan_of_range
from lakehouse.batch import compute
from lakehouse.storage.session import Session
from lakehouse.stream import handover
from lakehouse.transform import creation


def plan(session: Session, table_name: str) -> Backfill | None:
    """Sets the table's handover, if it has none, and returns the plan of `run`.

    Returns None if there is no history before the handover.

    Raises UnknownTable, RangeError, JobError.
    """
    table = session.catalog.table(table_name)
    session.catalog.check_streamed(table)
    creation.create(session, table)
    begins = handover.begin(session, table)
    span = compute.behind(session, table, begins.frontier)
    return plan_of_range(session, table_name, span.start, span.end) if span else None
