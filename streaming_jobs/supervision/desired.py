"""The desired state of a streaming job, and its history: two files under its folder.

<root>/_jobs/<pipeline>/desired.json  running, stopped or unsupervised, since when, by whom (Desired)
<root>/_jobs/<pipeline>/history.json  the last 100 starts, restarts and ends, with why (Event), oldest first
<root>/_jobs/<pipeline>/actor         the lock of the process that starts or ends the job's process
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import psutil

from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.disk.files import moved_aside, read_value, replace_file
from lakehouse.storage.disk.root import make as make_root
from streaming_jobs import progress
from streaming_jobs.supervision.holders import Place, here
from streaming_jobs.supervision.jobs import command

_KEPT = 100
State = Literal["running", "stopped", "unsupervised"]
What = Literal["started", "restarted", "stopping", "killed", "crash_loop", "exchanging"]


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state of a job, its beginning (ISO 8601 UTC), and who asked for it.

    The runner of `lakehouse stream run` keeps an `unsupervised` job running, and no supervisor does.

    A repeated wish is a new one: restarts and paused queries before `since` no longer count.
    """

    state: State
    since: str
    by: str

    @property
    def moment(self) -> datetime:
        return datetime.fromisoformat(self.since)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing done to a job's process, which `pid` and its start time name."""

    at: str
    what: What
    why: str
    pid: int = 0
    process_started: float = 0.0
    counted: bool = False  # a restart that the breaker counts
    well: float = 0.0  # of a restart: seconds that the process before had been well
    place: Place = field(default_factory=here)  # where its pid means something
    command: str = ""  # of an exchange of versions, for which the process ends: what does it
    wished: str = ""  # since when what was wanted then is wanted

    @property
    def moment(self) -> datetime:
        return datetime.fromisoformat(self.at)


def wish(settings: Settings, pipeline: str, state: State, by: str = "") -> Desired:
    """Records the desired state of the job from now on, by default in the name of the user of this process."""
    make_root(settings)
    # a clock that was set back makes no wish older than what was done for the one before
    since = max(progress.now(), _wished(history(settings, pipeline)))
    desired = Desired(state, since, by or psutil.Process().username())
    replace_file(_path(settings, pipeline), asdict(desired))
    return desired


def read(settings: Settings, pipeline: str) -> Desired | None:
    """Returns the last wish; None if nobody has asked."""
    meaning = f"what is wanted is not known: `{command('start', pipeline)}` or `{command('stop', pipeline)}` says it again"
    path = _path(settings, pipeline)
    return read_value(path, Desired, meaning, later=True, check=lambda wish: wish.moment)


def lost(settings: Settings, pipeline: str) -> str:
    """Returns the reason why the last wish is not known; empty if it is known, or nobody has asked."""
    path, events = _path(settings, pipeline), history(settings, pipeline)
    wanted, aside = read(settings, pipeline), moved_aside(path)
    if wanted and wanted.since < _wished(events):
        what = f"file={path}, since={wanted.since}: older than what was done for a later wish"
    elif wanted or not (aside or events):
        return ""
    else:
        what = f"file={aside[-1]}: unreadable" if aside else f"file={path}: gone"
    return (
        f"{what}, and it says what is wanted of the job, so nothing is started or ended; `{command('start', pipeline)}` or "
        f"`{command('stop', pipeline)}` says it again"
    )


def _path(settings: Settings, pipeline: str) -> Path:
    return layout.job_file(settings, pipeline, "desired.json")


def history(settings: Settings, pipeline: str) -> tuple[Event, ...]:
    """Returns the events of the job, oldest first."""
    path = layout.job_file(settings, pipeline, "history.json")
    meaning = "restarts are counted from zero"
    events = read_value(
        path,
        tuple[Event, ...],
        meaning,
        later=True,
        check=lambda events: [event.moment for event in events],
    )
    return events or ()


def note(settings: Settings, pipeline: str, event: Event) -> None:
    """Adds to the history. The caller holds `lock_process`."""
    if wanted := read(settings, pipeline):
        event = replace(event, wished=wanted.since)
    events = (*history(settings, pipeline), event)[-_KEPT:]
    replace_file(layout.job_file(settings, pipeline, "history.json"), [asdict(e) for e in events])


def _wished(events: Sequence[Event]) -> str:
    """Returns the time of the newest wish that an event served; empty without any."""
    return max((event.wished for event in events), default="")


def ended_for(settings: Settings, pipeline: str) -> str:
    """Returns the command that ended the job to exchange versions of a table, and has not started it again; empty if none."""
    wanted = read(settings, pipeline)
    if wanted is None or wanted.state != "running":
        return ""
    what = ("started", "restarted", "exchanging")
    last = next((e for e in reversed(history(settings, pipeline)) if e.what in what), None)
    return last.command if last else ""


def check_supervised(settings: Settings, pipeline: str) -> None:
    """Raises JobError if the job runs in the foreground of a command, which would end with it."""
    wanted = read(settings, pipeline)
    if wanted and wanted.state == "unsupervised":
        raise JobError(
            f"pipeline={pipeline!r}: it runs in the foreground ({wanted.by}); `{command('stop', pipeline)}`, and then "
            f"`{command('start', pipeline)}`, has it supervised"
        )


class Busy(JobError):
    """Another process starts or ends the job's process, which takes moments."""


def lock_process(
    settings: Settings, pipeline: str, wait: float = 0.0
) -> AbstractContextManager[object]:
    """Holds the right to start or end the job's process, which one process at a time has.

    Raises JobError if another holds it for longer than `wait` seconds.
    """
    make_root(settings)
    path = layout.job_file(settings, pipeline, "actor")
    message = f"pipeline={pipeline!r}: one at a time starts or ends its process, and another is at it; try again in a moment"
    return locks.alone(path, wait, refusal=lambda holder: Busy(message))


def restarts(events: Sequence[Event], since: datetime) -> list[Event]:
    """Returns the restarts that nobody asked for, from `since` on."""
    return [e for e in events if e.what == "restarted" and e.moment >= since]
