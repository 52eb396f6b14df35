"""Brings a streaming job to its desired state, one look at a time: `observe`, `healing.decide`, act.

A Dagster sensor and `lakehouse stream supervise` do the same. A look takes milliseconds and starts the process without
waiting for it. It yields to a command that is at the job already.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lakehouse import processes
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.stopping import Stop
from lakehouse.storage.disk import root
from streaming_jobs import progress
from streaming_jobs.progress import JobStatus, State
from streaming_jobs.supervision import desired, healing, holders, job_logs, supervisor
from streaming_jobs.supervision.desired import Event
from streaming_jobs.supervision.healing import Bounds, Decision, Observed

_PULSE = 0.1  # seconds between two looks whether a process lives
_ROOM = 32 << 20  # bytes; below that a process would end before it could say why


def wait(settings: Settings, pipelines: Sequence[str], stopping: Stop, every: float) -> bool:
    """Waits `every` seconds, or until a process has ended that lives now; returns True if the looks are to end.

    A check of a process takes a tenth of a millisecond, a look ten. Without it each recovery took a second more.
    """
    deadline = time.monotonic() + every
    processes = [supervisor.identity(settings, pipeline) for pipeline in pipelines]
    living = [process for process in processes if progress.is_alive(*process)]
    while not stopping.is_set() and all(progress.is_alive(*process) for process in living):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        stopping.wait(min(left, _PULSE))
    return stopping.is_set()


def step(settings: Settings, pipeline: str) -> Decision:
    """Decides about the job, acts, and returns the decision. One that cannot be carried out is `nothing`, with the reason."""
    if lost := desired.lost(settings, pipeline):
        return _asked_again(settings, pipeline, lost)
    if desired.read(settings, pipeline) is None:
        return Decision("nothing", "nobody has asked for it")
    try:
        with desired.lock_process(settings, pipeline):
            return _acted(settings, pipeline)
    except (JobError, OSError) as err:  # another is at it; it survived SIGKILL; the disk is full
        return Decision("nothing", str(err), trouble=not isinstance(err, desired.Busy))


def _asked_again(settings: Settings, pipeline: str, lost: str) -> Decision:
    """Wishes a job that runs to run on, because its wish was lost. The wish for any other only its users know."""
    if not supervisor.running(settings, pipeline):
        return Decision("nothing", lost, trouble=True)
    desired.wish(settings, pipeline, "running", "whoever supervises it, since it runs")
    return Decision(
        "nothing",
        "it runs, and is to run from now on: desired.json was unreadable, older or gone",
        trouble=True,
    )


def _acted(settings: Settings, pipeline: str) -> Decision:
    seen = observe(settings, pipeline)
    decision = healing.decide(
        desired.read(settings, pipeline),
        seen,
        desired.history(settings, pipeline),
        datetime.now(UTC),
        Bounds.of(settings),
        settings.freshness_of(pipeline),
    )
    action, why = decision.action, decision.why
    if action == "stop":
        supervisor.ask_to_end(settings, pipeline, why)
    elif action != "nothing":  # before a start it ends the JVM that a dead process left
        supervisor.kill(settings, pipeline, why)
    if action in ("start", "replace"):
        restarted = why != healing.WANTED
        well = seen.well.total_seconds() if restarted else 0.0
        supervisor.launch(
            settings, pipeline, why, restarted=restarted, counted=decision.counted, well=well
        )
    elif action == "break":
        _note_crash_loop(settings, pipeline, why)
    return decision


def _note_crash_loop(settings: Settings, pipeline: str, why: str) -> None:
    desired.note(settings, pipeline, Event(progress.now(), "crash_loop", why))
    last = supervisor.status(settings, pipeline) or JobStatus(
        pipeline, 0, 0.0, 0, 0.0, "crash_loop", "", ""
    )
    stopped = tuple(replace(q, active=False) for q in last.queries)
    started_at = last.started_at or progress.now()
    status = replace(last, state="crash_loop", error=why, started_at=started_at, queries=stopped)
    progress.write(settings, status)


def observe(settings: Settings, pipeline: str) -> Observed:
    """Returns the job's process as it is now; before its first status, as its launch and its log show it."""
    room = root.free(settings) > _ROOM
    launched = supervisor.silent_launch(settings, pipeline)
    status = supervisor.status(settings, pipeline)
    if launched:
        alive, place = supervisor.is_launching(settings, pipeline, launched), launched.place
        error = "" if alive or not place.is_here else job_logs.last_error(settings, pipeline)
        state: State = "starting" if alive else "failed" if error else "dead"
        seen = Observed(
            pipeline, state, alive, launched.moment, launched.moment, error=error, room=room
        )
        if place.is_here:
            computed = processes.cpu_seconds(*processes.family(launched.pid)) if alive else 0.0
            return _at_work(seen, launched.pid, computed)
        seconds = max(holders.left(settings, pipeline, place), 1.0 if alive else 0.0)
        return replace(seen, elsewhere=str(place), lease=timedelta(seconds=seconds))
    if status is None:
        return Observed(pipeline, room=room)
    at_work = [
        (q.table, datetime.fromisoformat(q.busy_since)) for q in status.queries if q.busy_since
    ]
    seen = Observed(
        pipeline,
        state=status.state,
        alive=status.alive,
        started=datetime.fromisoformat(status.started_at),
        heartbeat=datetime.fromisoformat(status.heartbeat),
        busy=min(at_work, key=lambda query: query[1], default=None),
        error=status.error if status.state == "failed" else "",  # of others it is a remark
        room=room,
        scheduled=status.freshness.startswith("scheduled"),
        well=timedelta(seconds=status.well),
        elsewhere="" if status.place.is_here else str(status.place),
        lease=timedelta(seconds=holders.left(settings, pipeline, status.place)),
        stage=datetime.fromisoformat(status.stage_since) if status.stage_since else None,
    )
    if not status.alive or not status.place.is_here:
        return seen
    now = processes.cpu_seconds(status.pid, status.jvm)
    return _at_work(seen, status.pid, now - status.computed)


def _at_work(seen: Observed, pid: int, computed: float) -> Observed:
    """Adds the CPU time of its process since its last sign of life; a process that a signal suspended has none."""
    if processes.is_suspended(pid):
        return seen
    since = timedelta(seconds=max(computed, 0.0))
    return replace(seen, computed=since, share=processes.cpu_share())
