"""What went wrong with a streaming job, for hooks: it failed, it was given up, a query of it is parked."""

from datetime import datetime

from lakehouse.hooks import Notice, What
from lakehouse.settings import Settings
from streaming_jobs import desired, progress

_TOLD: dict[str, What] = {"restarted": "job_failed", "broken": "job_given_up"}


def of_job(settings: Settings, pipeline: str) -> list[Notice]:
    """From the job's history, which keeps each failure, however soon it was healed, and from its status."""
    status = progress.read(settings, pipeline)
    done = [e for e in desired.history(settings, pipeline) if e.what in _TOLD]
    parked = [q for q in status.queries if q.state == "parked"] if status else []
    return [Notice(_TOLD[e.what], pipeline, e.why, e.moment) for e in done] + [
        Notice("query_parked", pipeline, f"{q.offsets} {q.error}".strip(), datetime.fromisoformat(q.since), q.table)
        for q in parked
    ]
