"""The reconciliation: recomputes a range behind the frontier and compares."""

from datetime import datetime

from lakehouse.batch import compute
from lakehouse.ranges import optional_range
from lakehouse.reconcile import reconciliation
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.certificates import Certificate
from lakehouse.storage.session import Session


def check(
    lakehouse: Lakehouse,
    table_name: str,
    start: datetime | None = None,
    end: datetime | None = None,
) -> None:
    """Raises what `run` refuses by the logs alone: RangeError, UnknownTable."""
    table = lakehouse.catalog.table(table_name)
    span = optional_range(start, end)
    if not table.kind.is_upserted:
        compute.closed_until(lakehouse, table)
    elif span is not None:
        lakehouse.catalog.check_derived(table)  # raises: a keyed table has no ranges


def run(
    session: Session, table_name: str, start: datetime | None = None, end: datetime | None = None
) -> Certificate:
    """Compares `[start, end)`, by default all that is closed, with its batch run.

    Records and returns the verdict.

    Nothing else is written. Raises RangeError, UnknownTable.
    """
    table = session.catalog.table(table_name)
    return reconciliation.reconcile(session, table, optional_range(start, end))


def exit_code(certificate: Certificate) -> int:
    """0 EQUAL, 1 DIFFERENT or nothing compared, 3 no verdict yet (PENDING, OPEN, UNVERIFIABLE)."""
    if certificate.verdict == "EQUAL":
        return 0 if certificate.rows_recomputed else 1
    return 1 if certificate.verdict == "DIFFERENT" else 3
