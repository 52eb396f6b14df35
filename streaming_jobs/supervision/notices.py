"""Notices of a streaming job, for notifications: it failed, is in a crash loop, lost files, or paused a query."""

from datetime import datetime, timedelta
from itertools import pairwise

from lakehouse.settings import Settings
from lakehouse.storage.disk.files import moved_at
from streaming_jobs import progress
from streaming_jobs.exporters.notifications import Notice, What
from streaming_jobs.supervision import desired, scheduled, supervisor
from streaming_jobs.supervision.desired import Event

_NOTICES: dict[str, What] = {"restarted": "job_failed", "crash_loop": "job_crash_loop"}
_OUTAGE = timedelta(minutes=10)  # longer than the waits between two restarts


def of_job(settings: Settings, pipeline: str) -> list[Notice]:
    """Returns the notices of the job's history, which keeps each failure, however soon it was healed, and of its status.

    Consecutive restarts for one reason are one notice: while the broker is away there is no end of them.
    """
    done = [event for event in desired.history(settings, pipeline) if event.what in _NOTICES]
    first = done[:1] + [event for before, event in pairwise(done) if not _again(before, event)]
    notices = [Notice(_NOTICES[e.what], pipeline, e.why, e.moment) for e in first]
    if status := progress.read(settings, pipeline):
        for q in status.queries:
            if q.state == "paused":
                why, since = f"{q.offsets} {q.error}".strip(), datetime.fromisoformat(q.since)
                notices.append(Notice("query_paused", pipeline, why, since, q.table))
            if q.begun:
                started = datetime.fromisoformat(status.started_at)
                notices.append(Notice("checkpoint_replaced", pipeline, q.begun, started, q.table))
    return [*notices, *_run_failed(settings, pipeline), *_files_lost(settings, pipeline)]


def _run_failed(settings: Settings, pipeline: str) -> list[Notice]:
    """Returns a notice if the last run of a scheduled job ended badly: no restart in its history says so."""
    if settings.freshness_of(pipeline).cron is None or scheduled.off(settings, pipeline):
        return []
    if launched := supervisor.silent_launch(settings, pipeline):
        if supervisor.is_launching(settings, pipeline, launched):
            return []
        pid, at = launched.pid, launched.moment
    else:  # the status is read last: a process may just have spoken
        status = supervisor.status(settings, pipeline)
        if status is None or status.state not in ("failed", "dead"):
            return []
        pid, at = status.pid, datetime.fromisoformat(status.heartbeat)
    return [Notice("job_failed", pipeline, scheduled.why_ended(settings, pipeline, pid), at)]


def _files_lost(settings: Settings, pipeline: str) -> list[Notice]:
    """Returns a notice for each file of the job that was unreadable, and one if nothing says any more what is wanted of it."""
    lost = [
        (f"file={path}: it was unreadable and moved aside", moved_at(path))
        for path in progress.unreadable(settings, pipeline)
    ]
    done = desired.history(settings, pipeline)
    if done and (why := desired.lost(settings, pipeline)):
        lost.append((why, done[-1].moment))
    return [Notice("job_files_lost", pipeline, why, at) for why, at in lost]


def _again(before: Event, event: Event) -> bool:
    same = (before.what, before.why) == (event.what, event.why)
    return same and event.moment - before.moment < _OUTAGE
