"""The beginning of a new table over history: a batch run up to its handover."""

from collections.abc import Iterator

from batch_jobs import backfill
from batch_jobs.planning import Backfill
from lakehouse.storage.commits import Commit
from lakehouse.storage.lakehouse import Session
from lakehouse.stream import handover
from lakehouse.transform import creation


def plan(lake: Session, table_name: str) -> Backfill | None:
    """Sets the table's handover, if it has none, and says what `run` does.

    None if there is no history behind it.

    Raises UnknownTable, RangeError, JobError.
    """
    table = lake.catalog.table(table_name)
    lake.catalog.check_streamed(table)
    creation.create(lake, table)
    handover.begin(lake, table)
    span = handover.history(lake, table)
    return backfill.plan(lake, table_name, span.start, span.end) if span else None


def run(lake: Session, planned: Backfill) -> Iterator[Commit]:
    """Computes the history of the table, partition by partition.

    One that was cut short goes on where it was.
    """
    return backfill.run(lake, planned.table, planned.start, planned.end)
