"""What went wrong with a streaming job, for notifications: it failed, it is in a crash loop, its files are lost, or a
query is paused.
"""

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
    """From the job's history, which keeps each failure, however soon it was healed, and from its status.

    Consecutive restarts for one reason are one notice: while the broker is away there is no end of
    them.
    """
    status = progress.read(settings, pipeline)
    done = [e for e in desired.history(settings, pipeline) if e.what in _NOTICES]
    first = done[:1] + [event for before, event in pairwise(done) if not _again(before, event)]
    queries = status.queries if status else ()
    paused = [q for q in queries if q.state == "paused"]
    return (
        [Notice(_NOTICES[e.what], pipeline, e.why, e.moment) for e in first]
        + [
            Notice(
                "query_paused",
                pipeline,
                f"{q.offsets} {q.error}".strip(),
                datetime.fromisoformat(q.since),
                q.table,
            )
            for q in paused
        ]
        + [
            Notice(
                "checkpoint_replaced",
                pipeline,
                q.begun,
                datetime.fromisoformat(status.started_at),
                q.table,
            )
            for q in queries
            if status and q.begun
        ]
        + [*_run_failed(settings, pipeline), *_files_lost(settings, pipeline)]
    )


def _run_failed(settings: Settings, pipeline: str) -> list[Notice]:
    """Of a scheduled job that its last run ended badly: it is not restarted, so its history does not say so."""
    if settings.freshness_of(pipeline).cron is None or scheduled.off(settings, pipeline):
        return []
    if launched := supervisor.silent_launch(settings, pipeline):
        if supervisor.is_launching(settings, pipeline, launched):
            return []
        return [
            Notice(
                "job_failed",
                pipeline,
                scheduled.why_ended(settings, pipeline, launched.pid),
                launched.moment,
            )
        ]
    status = supervisor.status(settings, pipeline)  # looked at last: a process may just have spoken
    if status is None or status.state not in ("failed", "dead"):
        return []
    why = scheduled.why_ended(settings, pipeline, status.pid)
    return [Notice("job_failed", pipeline, why, datetime.fromisoformat(status.heartbeat))]


def _files_lost(settings: Settings, pipeline: str) -> list[Notice]:
    """Files of the job that were unreadable, and what is wanted of it if nothing says so any more."""
    notices = [
        Notice(
            "job_files_lost",
            pipeline,
            f"file={path}: it was unreadable and moved aside",
            moved_at(path),
        )
        for path in progress.unreadable(settings, pipeline)
    ]
    done = desired.history(settings, pipeline)
    if (lost := desired.lost(settings, pipeline)) and done:
        notices.append(Notice("job_files_lost", pipeline, lost, done[-1].moment))
    return notices


def _again(before: Event, event: Event) -> bool:
    return (before.what, before.why) == (
        event.what,
        event.why,
    ) and event.moment - before.moment < _OUTAGE
