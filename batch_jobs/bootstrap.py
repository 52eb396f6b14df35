"""The beginning of a new table over history: a batch run up to its handover."""

from collections.abc import Iterator

from batch_jobs import backfill
from batch_jobs.planning import Backfill
from lakehouse.storage.log.commits import Commit
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
    handover.begin(session, table)
    span = handover.history(session, table)
    return backfill.plan(session, table_name, span.start, span.end) if span else None


def run(session: Session, planned: Backfill) -> Iterator[Commit]:
    """Computes the history of the table, partition by partition.

    A run that was cut short continues where it was.
    """
    return backfill.run(session, planned.table, planned)
