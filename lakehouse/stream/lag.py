"""How far streaming queries are behind what they read: by commit logs alone."""

from datetime import datetime, timedelta
from itertools import takewhile

from lakehouse.batch.late_merge import version_read
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.durations import duration
from lakehouse.freshness import CONTINUOUS
from lakehouse.settings import Settings
from lakehouse.storage.commit_log import CommitLog


def lag(settings: Settings, catalog: Catalog, now: datetime) -> timedelta:
    """How long the oldest commit of an input waits to be read by a streaming query that runs continuously; nothing if none waits.

    A query that has committed nothing for `batch_within` is not at work, and waits for nothing.
    """
    pipelines = (t for t in catalog if settings.freshness_of(t.pipeline) == CONTINUOUS)
    return max(
        (_lag(settings, t, catalog.driving_input(t), now) for t in pipelines), default=timedelta(0)
    )


def _lag(settings: Settings, table: Table, driving: Table | None, now: datetime) -> timedelta:
    last = next(CommitLog(settings, table).by_stream(), None) if driving else None
    if driving is None or last is None or now - last.at > duration(settings.batch_within):
        return timedelta(0)
    read = version_read(last, driving)
    unread = [
        c.at
        for c in takewhile(lambda c: c.version > read, CommitLog(settings, driving).by_stream())
        if c.written
    ]
    return now - min(unread, default=now)
