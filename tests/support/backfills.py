"""A backfill as its command runs it: planned, and then run by its plan."""

from collections.abc import Iterator
from datetime import datetime

from batch_jobs import backfill
from lakehouse.declare.lookups import Ask
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.session import Session


def run(
    session: Session,
    table: str,
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    whole: bool = False,
    cascade: bool = False,
    ask: Ask = "missing",
    again: bool = False,
) -> Iterator[Commit]:
    planned = backfill.plan(session, table, start, end, whole=whole, ask=ask, again=again)
    if planned is None:
        return backfill.rebuild(session, table)
    return backfill.run(session, planned, cascade=cascade, ask=ask, again=again)
