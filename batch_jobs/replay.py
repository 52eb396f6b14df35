"""The replay: quarantined rows of an ingest table that are good by its present declaration."""

from contextlib import ExitStack

from lakehouse.maintenance import propagate, replay_quarantine
from lakehouse.maintenance.replay_quarantine import Replay
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.session import Session
from lakehouse.transform import creation


def planned(session: Session, name: str) -> Replay:
    """What `run` would do; changes nothing. Raises UnknownTable, RangeError."""
    return replay_quarantine.planned(session, session.catalog.table(name))


def run(session: Session, name: str) -> Replay:
    """Writes the rows that are good now to the table, and has the tables that read it follow.

    Raises UnknownTable, RangeError, JobError, DeclarationError.
    """
    ingest = session.catalog.table(name)
    with ExitStack() as held:
        for table in (ingest, *propagate.derived(session, ingest)):
            held.enter_context(publishing(session.settings, table))
        creation.create(session, ingest)  # refuses other columns than those on disk
        return replay_quarantine.replay(session, ingest)
