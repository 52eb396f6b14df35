"""The rows that came too late for a table, as they are in its input."""

from functools import reduce

from pyspark.sql import DataFrame

from lakehouse.declare.columns import ORIGIN
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.storage.session import Session
from lakehouse.transform import lateness, plan
from lakehouse.transform.plan import Plan


def late_rows(session: Session, table: Table) -> DataFrame:
    """Returns the late view: rows of the inputs that came too late for this table, with the window they missed.

    With several inputs, a row has null in the columns of the others.
    """
    if not table.has_late_rows:
        raise RangeError(
            f"table={table.name}: only row and window tables, and keyed tables with ttl or final_rows, have late rows; name one"
        )
    step = plan.plan_of(session, table)
    parts = (_late_rows(session, step, t) for t in session.catalog.timed_inputs(table))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _late_rows(session: Session, step: Plan, of: Table) -> DataFrame:
    timed = step.timed[of.name]
    rows = timed.placed(session.read(of).where(f"{ORIGIN} = 'stream'"))
    return lateness.late(lateness.flagged(rows, step.table, timed.event_time))
