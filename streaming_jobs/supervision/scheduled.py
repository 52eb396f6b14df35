"""Pipelines that are scheduled: no process between two runs.

A run is the job's own process, up to the present.

Dagster's schedule ticks, and `lakehouse stream start` runs one besides. Whoever waits for a run
supervises it meanwhile.
"""

import time
from contextlib import suppress
from datetime import UTC, datetime

import psutil

from lakehouse import processes
from lakehouse.errors import JobError
from lakehouse.ranges import text
from lakehouse.settings import Settings
from streaming_jobs import progress
from streaming_jobs.progress import JobStatus
from streaming_jobs.supervision import control_loop, desired, supervisor

_LOOK = 1.0  # seconds between two looks at a run that one waits for
_END_OF_JVM = 20.0


def off(settings: Settings, pipeline: str) -> str:
    """Why the pipeline's schedule is not to run it; empty if it is to."""
    wanted = desired.read(settings, pipeline)
    if wanted and wanted.state == "running":
        return ""
    why = (
        f"{wanted.state} by {wanted.by} at {wanted.since}" if wanted else "nobody has asked for it"
    )
    return f"off its schedule, {why}; `lakehouse stream start {pipeline}` puts it on"


def run(settings: Settings, pipeline: str, *, by: str) -> JobStatus:
    """Runs the job up to the present and returns when it has ended.

    A run that is under way is waited for.

    Raises JobError if it fails, with its error, or if the job is not to run.
    """
    if why := off(settings, pipeline):
        raise JobError(f"pipeline={pipeline!r}: {why}")
    with desired.acting(settings, pipeline, supervisor.ACTING):
        pid = supervisor.begin(settings, pipeline, f"asked for by {by}")
    return await_end(settings, pipeline, pid)


def await_end(settings: Settings, pipeline: str, pid: int) -> JobStatus:
    """Returns when that process has ended well, ending it if it hangs.

    Raises JobError with why it ended otherwise.
    """
    elsewhere, born = not supervisor.is_here(settings, pipeline), processes.started(pid)
    while supervisor.lives(settings, pipeline) if elsewhere else progress.is_alive(pid, born):
        control_loop.step(settings, pipeline)
        if elsewhere:
            time.sleep(_LOOK)
            continue
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            psutil.Process(pid).wait(_LOOK)
    now = supervisor.status(settings, pipeline)
    if now and now.jvm_alive:  # it ends when it sees the pipe to its parent closed
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            psutil.Process(now.jvm).wait(_END_OF_JVM)
    if now and now.pid == pid and now.state == "stopped":
        return now
    why = why_ended(settings, pipeline, pid)
    raise JobError(
        f"pipeline={pipeline!r}: its run failed, and the next one tries again from where it was; {why}"
    )


def next_run(settings: Settings, pipeline: str) -> datetime | None:
    """When the first run after the last one is due, maybe past.

    None if the pipeline is not on a schedule.
    """
    cron, wanted = settings.freshness_of(pipeline).cron, desired.read(settings, pipeline)
    if cron is None or wanted is None or off(settings, pipeline):
        return None
    status, done = supervisor.status(settings, pipeline), desired.history(settings, pipeline)
    instants = [wanted.since, *(e.at for e in done[-1:]), *([status.heartbeat] if status else [])]
    return cron.after(max(datetime.fromisoformat(at) for at in instants))


def summary(settings: Settings, pipeline: str) -> str:
    """How fresh the pipeline is kept, in a line: of one that is scheduled with its last and its next run."""
    knob = settings.freshness_of(pipeline)
    if knob.cron is None:
        return str(knob)
    status, due = supervisor.status(settings, pipeline), next_run(settings, pipeline)
    last = (
        f"last run {status.started_at[:19]}Z to {status.heartbeat[:19]}Z, {status.state}"
        if status
        else "no run yet"
    )
    if status and status.alive:
        last = f"a run since {status.started_at[:19]}Z"
    if due is None:
        return f"{knob}; {last}; {off(settings, pipeline)}"
    missed = (
        "" if due > datetime.now(UTC) or (status and status.alive) else " (is Dagster's daemon up?)"
    )
    return f"{knob}; {last}; next run {text(due)}{missed}"


def why_ended(settings: Settings, pipeline: str, pid: int) -> str:
    """Why a run that ended badly did so."""
    now, done = supervisor.status(settings, pipeline), desired.history(settings, pipeline)
    killed = next((e.why for e in reversed(done) if e.what == "killed" and e.pid == pid), "")
    spoken = now.error if now and now.pid == pid else supervisor.last_error(settings, pipeline)
    return killed or spoken or "its process died without an error message"
