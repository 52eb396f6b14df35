"""The erasure: rows of an ingest table removed for good, and what was computed from them."""

from contextlib import ExitStack

from lakehouse.maintenance import erasure, propagate
from lakehouse.maintenance.erasure import Erasure
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.session import Session


def planned(session: Session, name: str, where: str) -> Erasure:
    """What `run` would do, refusing what it would refuse; changes nothing."""
    return erasure.planned(session, session.catalog.table(name), where)


def run(session: Session, name: str, where: str) -> Erasure:
    """Erases the rows of that ingest table which meet the condition.

    Raises UnknownTable, RangeError, JobError.
    """
    ingest = session.catalog.table(name)
    with ExitStack() as held:
        for table in (ingest, *propagate.derived(session, ingest)):
            held.enter_context(publishing(session.settings, table))
        return erasure.erase(session, ingest, where)
