"""Decisions about a streaming job: pure functions of its desired state, its process, its history, and the time.

A supervisor asks `decide` about the process; the process asks `after_failure` about one of its queries.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from lakehouse.backoff import Backoff
from lakehouse.durations import duration
from lakehouse.freshness import CONTINUOUS, Freshness
from lakehouse.ranges import text
from lakehouse.settings import Settings
from streaming_jobs.progress import AT_WORK, State
from streaming_jobs.supervision.desired import Desired, Event, restarts
from streaming_jobs.supervision.jobs import command

WANTED = "it is to run"  # the reason to start a process that did not go down
_RESTARTS = Backoff(2, 300)
_AT_WORK = 0.1  # of a thread's share of a core: an idle JVM takes less
_CALM = timedelta(minutes=10)  # a query's failures are forgotten after it
# Causes that pass by themselves, so that a restart would meet them again: the broker away, no room on the disk.
# They are spelt out, since a JVM that died is a "connection refused", too.
_TRANSIENT = re.compile(
    r"must answer within|none is running|kafka[.\w]*\.(Timeout|Disconnect|BrokerNotAvailable|LeaderNotAvailable)Exception"
    r"|Timed out waiting for a node assignment|No resolvable bootstrap|No space left on device|Disk quota exceeded",
    re.IGNORECASE,
)
_OF_THE_PROCESS = re.compile(
    r"OutOfMemoryError|stopped SparkContext|SparkContext was shut down", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a healthy job: durations, and restarts."""

    start: timedelta = timedelta(minutes=10)  # until it runs
    heartbeat: timedelta = timedelta(minutes=1)  # between two signs of life
    batch: timedelta = timedelta(minutes=10)  # for one micro-batch
    stop: timedelta = timedelta(minutes=2)  # until it has drained
    restarts: int = 5  # more than that ...
    within: timedelta = timedelta(hours=1)  # ... in that time is a crash loop
    # well for so long, and the restarts before no longer count
    healthy: timedelta = timedelta(minutes=2)

    @classmethod
    def of(cls, settings: Settings) -> "Bounds":
        return cls(
            start=duration(settings.start_within),
            heartbeat=duration(settings.heartbeat_within),
            batch=duration(settings.batch_within),
            restarts=settings.restarts,
            within=duration(settings.restarts_within),
            healthy=duration(settings.healthy_after),
        )


@dataclass(frozen=True, slots=True)
class Observed:
    """A job's process as it is seen. Without a process `alive` is False, and `state` its last one."""

    pipeline: str
    state: State | None = None  # None: it never ran
    alive: bool = False
    started: datetime | None = None
    heartbeat: datetime | None = None
    # the table whose micro-batch runs longest, and since when
    busy: tuple[str, datetime] | None = None
    error: str = ""
    room: bool = True  # on the disk, for a process to start
    scheduled: bool = False  # a run of a schedule: that it has ended is right
    well: timedelta = timedelta(0)  # how long the process ran without a failure
    # the place of a process that can only be waited for; empty of one that is here
    elsewhere: str = ""
    lease: timedelta = timedelta(0)  # for so long a process elsewhere may still write
    stage: datetime | None = None  # of one that starts: since when it is at its present stage
    computed: timedelta = timedelta(0)  # by its processes, since its last sign of life
    share: float = 1.0  # of a core that the machine has for a thread now


Action = Literal["nothing", "start", "replace", "stop", "kill", "break"]


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, and its reason. `replace` is kill, then start. A `counted` restart counts towards the breaker."""

    action: Action
    why: str
    counted: bool = False
    due: datetime | None = None  # nothing now, but a restart then
    trouble: bool = False  # nothing, for it could not be done, or nobody knows what is wanted


def decide(
    desired: Desired | None,
    seen: Observed,
    history: Sequence[Event],
    now: datetime,
    bounds: Bounds,
    freshness: Freshness = CONTINUOUS,
) -> Decision:
    """Returns the decision about the process of a job.

    Only its schedule starts a scheduled one: a run that failed is tried again at the next tick. A second count of failures
    would only choose another moment than the one asked for, and nothing is lost until then.
    """
    if desired is None:
        return Decision("nothing", "nobody has asked for it")
    if desired.state == "unsupervised":
        return Decision(
            "nothing", f"what runs it in the foreground keeps it running ({desired.by})"
        )
    since = datetime.fromisoformat(desired.since)
    if seen.elsewhere and seen.lease:
        return _elsewhere(desired, seen)
    if desired.state == "stopped":
        return _end(seen, since, history, now, bounds)
    done = unhealthy(restarts(history, max(since, now - bounds.within)), seen.well, bounds.healthy)
    fault = _fault(seen, since, now, bounds) if seen.alive else ""
    if seen.alive and not fault:
        return Decision("nothing", f"it is {seen.state}")
    if freshness.cron:
        return Decision("kill", fault) if fault else _idle(seen, freshness.cron.after(now))
    if history and history[-1].what == "crash_loop" and history[-1].moment >= since:
        return Decision("nothing", history[-1].why)
    if not seen.room and not seen.alive:
        return Decision(
            "nothing", "it is to run, but the disk is full; it is started when there is room"
        )
    counted = not is_transient(seen.error) or seen.alive
    if counted and sum(e.counted for e in done) >= bounds.restarts:
        return Decision("break", _crash_loop(seen, fault, bounds))
    if seen.alive:
        return Decision("replace", fault, counted=True)
    return _start(seen, since, done, now, counted)


def unhealthy(done: Sequence[Event], well: timedelta, healthy: timedelta) -> list[Event]:
    """Returns the restarts that count, for the wait and for the breaker: those since a process was well for long enough.

    `well` is the time for which the last one was.
    """
    if well >= healthy:
        return []
    first = max(
        (n for n, event in enumerate(done) if event.well >= healthy.total_seconds()), default=0
    )
    return list(done[first:])


def _elsewhere(desired: Desired, seen: Observed) -> Decision:
    """Returns the decision about a process elsewhere: its lease alone counts, and it can only be ended there."""
    if not seen.alive:
        why = f"its process ({seen.elsewhere}) is gone or {seen.state}, and its lease expires in {_shown(seen.lease)}"
        return Decision("nothing", f"{why}; nothing is started beside it before that")
    asked = ", and drains as it was asked to" if desired.state == "stopped" else ""
    return Decision("nothing", f"it is {seen.state} elsewhere ({seen.elsewhere}){asked}")


def _end(
    seen: Observed, since: datetime, history: Sequence[Event], now: datetime, bounds: Bounds
) -> Decision:
    if not seen.alive:
        return Decision("nothing", "it is stopped")
    asked_at = max(seen.heartbeat, since) if seen.heartbeat and seen.state == "stopping" else since
    if is_overdue(now - asked_at, bounds.stop, seen.computed, seen.share):
        return Decision("kill", f"it did not end within {_shown(bounds.stop)} of being asked to")
    if seen.state == "stopping" or any(e.what == "stopping" and e.moment >= since for e in history):
        return Decision("nothing", "it drains")
    return Decision("stop", "it is to be stopped")


def _idle(seen: Observed, due: datetime) -> Decision:
    ended = (
        ""
        if seen.state in (None, "stopped")
        else f"; the last one ended as {seen.state}, {seen.error or 'without an error message'}"
    )
    return Decision("nothing", f"the next run of its schedule is due at {text(due)}{ended}")


def is_overdue(
    silence: timedelta, limit: timedelta, computed: timedelta = timedelta(0), share: float = 1.0
) -> bool:
    """Returns True if a process that has given no sign for `silence` is to be ended: it hangs, or computes without end.

    A process that has `computed` a part of this machine's `share` for a thread is slow: it gets as much time as `limit`
    would be on a machine of its own. A process that waits computes nothing.
    """
    if silence <= limit or computed >= limit:
        return silence > limit
    return computed < silence * share * _AT_WORK


def _fault(seen: Observed, since: datetime, now: datetime, bounds: Bounds) -> str:
    """Returns the fault of a process that lives; empty if it has none."""
    stage, heartbeat = seen.stage or seen.started or now, seen.heartbeat or now
    does = seen.computed, seen.share
    if seen.state == "starting" and is_overdue(now - stage, bounds.start, *does):
        return f"it did not run within {_shown(bounds.start)} of its start, or of the last stage of that"
    if seen.state == "stopping" and is_overdue(now - max(heartbeat, since), bounds.stop, *does):
        return f"it did not end within {_shown(bounds.stop)}"
    if seen.state in AT_WORK and is_overdue(now - heartbeat, bounds.heartbeat, *does):
        return (
            f"no sign of life for {_shown(now - heartbeat)}, more than {_shown(bounds.heartbeat)}"
        )
    if seen.state in AT_WORK and seen.busy and now - seen.busy[1] > bounds.batch:
        return f"a micro-batch of {seen.busy[0]} has run for {_shown(now - seen.busy[1])}, more than {_shown(bounds.batch)}"
    return ""


def _start(
    seen: Observed, since: datetime, done: list[Event], now: datetime, counted: bool
) -> Decision:
    """Returns the start: at once the first time, later after ever longer waits, from its end on or from the last attempt."""
    last = done[-1].moment if done else None
    moments = [moment for moment in (seen.started, seen.heartbeat, last) if moment]
    if not moments or max(moments) < since or (seen.scheduled and seen.state == "stopped"):
        # it did not go down: it has not been up since that was said, or has done its run
        return Decision("start", WANTED)
    ended = {"dead": "its process died", "failed": "it failed"}.get(
        str(seen.state), "it ended, though it is to run"
    )
    why = f"{ended}: {seen.error}" if seen.error else ended
    past = [moment for moment in moments if moment <= now]  # the clock of another host may be ahead
    due = max(past) + backoff(seen.pipeline, len(done)) if past else now
    if now < due:
        return Decision("nothing", f"{why}; next attempt in {_shown(due - now)}", due=due)
    return Decision("start", why, counted=counted)


def backoff(pipeline: str, attempt: int) -> timedelta:
    """Returns the wait before a restart: none before the first, then 2 s, 4 s, ... 5 minutes, each less up to a half by chance.

    The chance is that of name and number, so that jobs which fail together do not come back together.
    """
    if attempt == 0:
        return timedelta(0)
    return timedelta(seconds=_RESTARTS.after(attempt)) * (
        1 - zlib.crc32(f"{pipeline} {attempt}".encode()) / 2**33
    )


def _crash_loop(seen: Observed, fault: str, bounds: Bounds) -> str:
    last = fault or seen.error or "its process died without an error message"
    return (
        f"pipeline={seen.pipeline!r}: crash loop: {bounds.restarts} restarts within {_shown(bounds.within)} did not help; "
        f"the last end: {last}. See `{command('logs', seen.pipeline)}`, remove the cause, then "
        f"`{command('start', seen.pipeline)}`"
    )


def is_transient(error: str) -> bool:
    """Returns True if the cause passes by itself, so that one waits for it, without a crash loop."""
    return bool(_TRANSIENT.search(error))


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a query; `batch` is the micro-batch that it was in, None if in none."""

    at: datetime
    batch: int | None
    error: str
    access: bool = False  # the broker did not let it in, or not do something


def after_failure(failures: Sequence[Failure], limit: int) -> Literal["restart", "pause", "end"]:
    """Returns the fate of a query that has just failed: it is restarted alone at most `most` times.

    Then it is paused if it fails in one and the same micro-batch, each time before the first, or for want of a right at the
    broker: the process is not at fault, and another one would meet it again.
    """
    last = failures[-1]
    if _OF_THE_PROCESS.search(last.error):
        return "end"
    recent = [f for f in failures if last.at - f.at <= _CALM]
    if len(recent) <= limit:
        return "restart"
    same = {f.batch for f in recent[-limit - 1 :]} == {last.batch}
    return "pause" if last.access or (same and not is_transient(last.error)) else "end"


def _shown(span: timedelta) -> str:
    seconds = span.total_seconds()
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
