"""Brings a streaming job to what is wanted of it, one look at a time: `observe`, `healing.decide`, act.

The same from a Dagster sensor and from `lakehouse stream supervise`. A look takes milliseconds and
starts the process without waiting for it; whoever is at the job already goes first.
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
from streaming_jobs.supervision import desired, healing, holders, supervisor
from streaming_jobs.supervision.desired import Event
from streaming_jobs.supervision.healing import Bounds, Decision, Observed

_PULSE = 0.1  # seconds between two looks whether a process lives
_ROOM = 32 << 20  # bytes; below that a process would end before it could say why


def wait(settings: Settings, pipelines: Sequence[str], stopping: Stop, every: float) -> bool:
    """Until the next look: `every` seconds, or when a process has ended that lives now.

    Whether to stop looking altogether.

    To ask whether a process lives takes a tenth of a millisecond, a look ten: to wait for it was a
    second of each recovery.
    """
    deadline = time.monotonic() + every
    processes = [supervisor.identity(settings, pipeline) for pipeline in pipelines]
    living = [each for each in processes if progress.is_alive(*each)]
    while (left := deadline - time.monotonic()) > 0 and all(
        progress.is_alive(*each) for each in living
    ):
        if stopping.wait(min(left, _PULSE)):
            break
    return stopping.is_set()


def step(settings: Settings, pipeline: str) -> Decision:
    """Does now what is to be done about the job, and returns it.

    What cannot be done is returned as `nothing`, with why.
    """
    if lost := desired.lost(settings, pipeline):
        return _asked_again(settings, pipeline, lost)
    if desired.read(settings, pipeline) is None:
        return Decision("nothing", "nobody has asked for it")
    try:
        with desired.acting(settings, pipeline):
            return _acted(settings, pipeline)
    except (JobError, OSError) as err:  # another is at it; it outlives SIGKILL; the disk is full
        return Decision("nothing", str(err), trouble=not isinstance(err, desired.Busy))


def _asked_again(settings: Settings, pipeline: str, lost: str) -> Decision:
    """What was wanted is not readable any more: of a job that runs it can be known, of another only who uses it can say."""
    if not supervisor.running(settings, pipeline):
        return Decision("nothing", lost, trouble=True)
    desired.wish(settings, pipeline, "running", "whoever supervises it, since it runs")
    return Decision(
        "nothing",
        "it runs, and is to run from now on: desired.json was unreadable, older or gone",
        trouble=True,
    )


def _acted(settings: Settings, pipeline: str) -> Decision:
    seen, done = observe(settings, pipeline), desired.history(settings, pipeline)
    wanted, bounds = desired.read(settings, pipeline), Bounds.of(settings)
    decision = healing.decide(
        wanted, seen, done, datetime.now(UTC), bounds, settings.freshness_of(pipeline)
    )
    match decision.action:
        case "start" | "replace":
            # also what a dead process left: its JVM
            supervisor.kill(settings, pipeline, decision.why)
            restarted, well = decision.why != healing.WANTED, seen.well.total_seconds()
            supervisor.launch(
                settings,
                pipeline,
                decision.why,
                restarted=restarted,
                counted=decision.counted,
                well=well if restarted else 0.0,
            )
        case "stop":
            supervisor.ask_to_end(settings, pipeline, decision.why)
        case "kill":
            supervisor.kill(settings, pipeline, decision.why)
        case "break":
            supervisor.kill(settings, pipeline, decision.why)
            _note_crash_loop(settings, pipeline, decision.why)
    return decision


def _note_crash_loop(settings: Settings, pipeline: str, why: str) -> None:
    desired.note(settings, pipeline, Event(progress.now(), "crash_loop", why))
    last = supervisor.status(settings, pipeline) or JobStatus(
        pipeline, 0, 0.0, 0, 0.0, "crash_loop", "", ""
    )
    stopped = tuple(replace(q, active=False) for q in last.queries)
    now = progress.now()
    progress.write(
        settings,
        replace(
            last, state="crash_loop", error=why, started_at=last.started_at or now, queries=stopped
        ),
    )


def observe(settings: Settings, pipeline: str) -> Observed:
    """The job's process as it is now: of one that has not spoken yet, what is known from its launch and its log."""
    room = root.free(settings) > _ROOM
    launched, status = (
        supervisor.silent_launch(settings, pipeline),
        supervisor.status(settings, pipeline),
    )
    if launched:
        alive, place = supervisor.is_launching(settings, pipeline, launched), launched.place
        error = "" if alive or not place.is_here else supervisor.last_error(settings, pipeline)
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
    started, heartbeat = (
        datetime.fromisoformat(at) for at in (status.started_at, status.heartbeat)
    )
    at_work = [
        (q.table, datetime.fromisoformat(q.busy_since)) for q in status.queries if q.busy_since
    ]
    busy = min(at_work, key=lambda found: found[1], default=None)
    error = status.error if status.state == "failed" else ""  # of others it is a remark
    scheduled = status.freshness.startswith("scheduled")
    left = timedelta(seconds=holders.left(settings, pipeline, status.place))
    seen = Observed(
        pipeline,
        status.state,
        status.alive,
        started,
        heartbeat,
        busy,
        error,
        room,
        scheduled,
        timedelta(seconds=status.well),
        "" if status.place.is_here else str(status.place),
        left,
        stage=datetime.fromisoformat(status.stage_since) if status.stage_since else None,
    )
    if not status.alive or not status.place.is_here:
        return seen
    now = processes.cpu_seconds(status.pid, status.jvm)
    return _at_work(seen, status.pid, now - status.computed)


def _at_work(seen: Observed, pid: int, computed: float) -> Observed:
    """With what its process here has computed since its last sign of life; one that was stopped by a signal does nothing."""
    if processes.is_suspended(pid):
        return seen
    since = timedelta(seconds=max(computed, 0.0))
    return replace(seen, computed=since, share=processes.cpu_share())
