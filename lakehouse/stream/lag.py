"""The lag of streaming queries after their inputs, by commit logs alone."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile

from lakehouse.declare.table import Table
from lakehouse.durations import duration
from lakehouse.freshness import CONTINUOUS
from lakehouse.settings import Settings
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.log.commits import Commit


def lag(lakehouse: Lakehouse, now: datetime) -> timedelta:
    """Returns how long the oldest unread commit of an input waits for a query that runs continuously; zero if none waits.

    A query that has committed nothing for `batch_within` is not at work, and no commit waits for it.
    """
    pipelines = (
        t for t in lakehouse.catalog if lakehouse.settings.freshness_of(t.pipeline) == CONTINUOUS
    )
    return max(
        (_lag(lakehouse.settings, t, lakehouse.catalog.followed_inputs(t), now) for t in pipelines),
        default=timedelta(0),
    )


def _lag(settings: Settings, table: Table, inputs: Sequence[Table], now: datetime) -> timedelta:
    last = next(CommitLog(settings, table).by_stream(), None) if inputs else None
    if last is None or now - last.at > duration(settings.batch_within):
        return timedelta(0)
    return now - (unread_since(settings, inputs, last) or now)


def unread_since(settings: Settings, inputs: Sequence[Table], last: Commit) -> datetime | None:
    """Returns the time of the oldest commit of an input that a query has not read by its commit `last`, if there is one."""
    return min((at for each in inputs for at in _unread(settings, each, last)), default=None)


def _unread(settings: Settings, table: Table, last: Commit) -> list[datetime]:
    """Returns the times of an input's commits with rows that the commit `last` had not read yet."""
    read = last.version_read(table.name)
    later = takewhile(lambda c: c.version > read, CommitLog(settings, table).by_stream())
    return [c.at for c in later if c.written]
