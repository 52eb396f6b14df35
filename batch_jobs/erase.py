"""The erasure: rows of an ingest table removed for good, and what was computed from them."""

from contextlib import ExitStack

from lakehouse.maintenance import erasure, propagate
from lakehouse.maintenance.erasure import Erasure
from lakehouse.storage.lakehouse import Session
from lakehouse.storage.publish_lock import publishing


def planned(lake: Session, name: str, where: str) -> Erasure:
    """What `run` would do, refusing what it would refuse; changes nothing."""
    return erasure.planned(lake, lake.catalog.table(name), where)


def run(lake: Session, name: str, where: str) -> Erasure:
    """Erases the rows of that ingest table which meet the condition.

    Raises UnknownTable, RangeError, JobError.
    """
    ingest = lake.catalog.table(name)
    with ExitStack() as held:
        for table in (ingest, *propagate.derived(lake, ingest)):
            held.enter_context(publishing(lake.settings, table))
        return erasure.erase(lake, ingest, where)
