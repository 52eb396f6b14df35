"""What went wrong with a streaming job, for hooks: it failed, it was given up, a query of it is parked or lost its checkpoint."""

from datetime import datetime, timedelta
from itertools import pairwise

from lakehouse.hooks import Notice, What
from lakehouse.settings import Settings
from streaming_jobs import desired, progress
from streaming_jobs.desired import Event

_TOLD: dict[str, What] = {"restarted": "job_failed", "broken": "job_given_up"}
_OUTAGE = timedelta(minutes=10)  # longer than the waits between two restarts


def of_job(settings: Settings, pipeline: str) -> list[Notice]:
    """From the job's history, which keeps each failure, however soon it was healed, and from its status.

    Restarts for one reason, one upon the other, are told once: while the broker is away there is no end of them.
    """
    status = progress.read(settings, pipeline)
    done = [e for e in desired.history(settings, pipeline) if e.what in _TOLD]
    first = done[:1] + [event for before, event in pairwise(done) if not _again(before, event)]
    queries = status.queries if status else ()
    parked = [q for q in queries if q.state == "parked"]
    return [Notice(_TOLD[e.what], pipeline, e.why, e.moment) for e in first] + [
        Notice("query_parked", pipeline, f"{q.offsets} {q.error}".strip(), datetime.fromisoformat(q.since), q.table)
        for q in parked
    ] + [
        Notice("checkpoint_replaced", pipeline, q.begun, datetime.fromisoformat(status.started_at), q.table)
        for q in queries
        if q.begun
    ]


def _again(before: Event, event: Event) -> bool:
    return (before.what, before.why) == (event.what, event.why) and event.moment - before.moment < _OUTAGE
