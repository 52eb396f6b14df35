"""Pipelines that are scheduled: no process between two runs, each of which is the job's own process, up to the present.

Dagster's schedule ticks, and `lakehouse stream start` runs one besides. The process that waits for a run supervises it.
"""

import time
from datetime import UTC, datetime

from lakehouse import processes
from lakehouse.errors import JobError
from lakehouse.ranges import text
from lakehouse.settings import Settings
from streaming_jobs import progress
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import control_loop, desired, job_logs, supervisor

_LOOK = 1.0  # seconds between two looks at a run
_END_OF_JVM = 20.0


def off(settings: Settings, pipeline: str) -> str:
    """Returns the reason why the pipeline's schedule is not to run it; empty if it is to."""
    wanted, why = desired.read(settings, pipeline), "nobody has asked for it"
    if wanted and wanted.state == "running":
        return ""
    if wanted:
        why = f"{wanted.state} by {wanted.by} at {wanted.since}"
    return f"off its schedule, {why}; `lakehouse stream start {pipeline}` puts it on"


def run(settings: Settings, pipeline: str, *, by: str) -> JobStatus:
    """Runs the job up to the present, or joins a run under way, and returns when it has ended.

    Raises JobError if it fails, with its error, or if the job is not to run.
    """
    if why := off(settings, pipeline):
        raise JobError(f"pipeline={pipeline!r}: {why}")
    with desired.lock_process(settings, pipeline, supervisor.ACTING):
        pid = supervisor.begin(settings, pipeline, f"asked for by {by}")
    return await_end(settings, pipeline, pid)


def await_end(settings: Settings, pipeline: str, pid: int) -> JobStatus:
    """Returns when that process has ended well, and ends it if it hangs. Raises JobError with the reason for another end."""
    elsewhere, born = not supervisor.is_here(settings, pipeline), processes.started(pid)
    while supervisor.lives(settings, pipeline) if elsewhere else progress.is_alive(pid, born):
        control_loop.step(settings, pipeline)
        if elsewhere:
            time.sleep(_LOOK)
        else:
            processes.wait(pid, born, _LOOK)
    now = supervisor.status(settings, pipeline)
    if now:
        now.await_end_of_jvm(_END_OF_JVM)
    if now and now.pid == pid and now.state == "stopped":
        return now
    why = why_ended(settings, pipeline, pid)
    raise JobError(
        f"pipeline={pipeline!r}: its run failed, and the next one tries again from where it was; {why}"
    )


def next_run(settings: Settings, pipeline: str) -> datetime | None:
    """Returns when the run after the last one is due, maybe in the past; None if the pipeline is not on a schedule."""
    cron, wanted = settings.freshness_of(pipeline).cron, desired.read(settings, pipeline)
    if cron is None or wanted is None or off(settings, pipeline):
        return None
    status, done = supervisor.status(settings, pipeline), desired.history(settings, pipeline)
    instants = [wanted.since, *(e.at for e in done[-1:]), *([status.heartbeat] if status else [])]
    return cron.after(max(datetime.fromisoformat(at) for at in instants))


def summary(settings: Settings, pipeline: str) -> str:
    """Returns the freshness of the pipeline in a line; with its last and its next run if it is scheduled."""
    knob = settings.freshness_of(pipeline)
    if knob.cron is None:
        return str(knob)
    status, due = supervisor.status(settings, pipeline), next_run(settings, pipeline)
    runs = status is not None and status.alive
    if status is None:
        last = "no run yet"
    elif runs:
        last = f"a run since {status.started_at[:19]}Z"
    else:
        last = f"last run {status.started_at[:19]}Z to {status.heartbeat[:19]}Z, {status.state}"
    if due is None:
        return f"{knob}; {last}; {off(settings, pipeline)}"
    missed = "" if runs or due > datetime.now(UTC) else " (is Dagster's daemon up?)"
    return f"{knob}; {last}; next run {text(due)}{missed}"


def why_ended(settings: Settings, pipeline: str, pid: int) -> str:
    """Returns the reason why a run ended badly."""
    now, done = supervisor.status(settings, pipeline), desired.history(settings, pipeline)
    killed = next((e.why for e in reversed(done) if e.what == "killed" and e.pid == pid), "")
    spoken = now.error if now and now.pid == pid else job_logs.last_error(settings, pipeline)
    return killed or spoken or "its process died without an error message"
