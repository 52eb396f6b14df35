"""What the control loop sees of a job, and what was wanted of it."""

from datetime import UTC, datetime, timedelta

from streaming_jobs import progress
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision.desired import Desired, Event
from streaming_jobs.supervision.healing import Bounds, Observed

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BOUNDS = Bounds(start=timedelta(minutes=3), restarts=3)


def ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


RUN = Desired("running", ago(hours=9).isoformat(), "ann")
STOP = Desired("stopped", ago(seconds=5).isoformat(), "ann")
WELL = Observed(
    "sensors", "running", True, ago(hours=8), ago(seconds=1), ("valid_readings", ago(seconds=3))
)
DEAD = Observed("sensors", "dead", False, ago(hours=8), ago(seconds=1))
FAILED = Observed("sensors", "failed", False, ago(hours=8), ago(seconds=1), error="OSError: x")


def restarted(*minutes: float, counted: bool = True) -> tuple[Event, ...]:
    return tuple(
        Event(ago(minutes=m).isoformat(), "restarted", "it died", counted=counted) for m in minutes
    )


def status_of(pid: int, born: float, **given: object) -> JobStatus:
    at = progress.now()
    return JobStatus(
        "sensors",
        pid,
        born,
        0,
        0.0,
        **({"state": "running", "started_at": at, "heartbeat": at} | given),
    )
