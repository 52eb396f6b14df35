"""What is wanted of a streaming job, and what was done to it: two files under its folder.

<root>/_jobs/<pipeline>/desired.json  running, stopped or unsupervised, since when, by whom (Desired)
<root>/_jobs/<pipeline>/history.json  the last 100 starts, restarts and ends, with why (Event), oldest first
<root>/_jobs/<pipeline>/actor         locked by whoever starts or ends the process, for as long as that takes
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from lakehouse.storage.disk.typed_values import typed
from streaming_jobs import progress
from streaming_jobs.supervision.jobs import command
from streaming_jobs.supervision.places import Place, here

_KEPT = 100
State = Literal["running", "stopped", "unsupervised"]
What = Literal["started", "restarted", "stopping", "killed", "crash_loop", "exchanging"]


@dataclass(frozen=True, slots=True)
class Desired:
    """What a job is to be, from when on (ISO 8601 UTC), and who said so.

    One that is `unsupervised` is kept running by what runs `lakehouse stream run`, and by no supervisor.

    To say it again makes it new: what happened before `since` no longer counts, neither restarts
    nor paused queries.
    """

    state: State
    since: str
    by: str


@dataclass(frozen=True, slots=True)
class Event:
    """One thing done to a job's process.

    `pid` and its start time are those of the process started, or ended.
    """

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
    """Records what the job is to be from now on, by default in the name of the user of this process."""
    make_root(settings)
    # a clock that was set back makes no wish older than what was done for the one before
    since = max(progress.now(), _wished(history(settings, pipeline)))
    desired = Desired(state, since, by or psutil.Process().username())
    replace_file(_path(settings, pipeline), asdict(desired))
    return desired


def read(settings: Settings, pipeline: str) -> Desired | None:
    """What was last asked for; None if nobody has asked."""
    meaning = f"what is wanted is not known: `{command('start', pipeline)}` or `{command('stop', pipeline)}` says it again"
    return read_value(_path(settings, pipeline), _desired, meaning)


def lost(settings: Settings, pipeline: str) -> str:
    """Why it is not known what is wanted, if it was asked for.

    Empty if it is known, or nobody has asked.
    """
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


def _desired(given: object) -> Desired:
    desired = typed(Desired, given, later=True)
    datetime.fromisoformat(desired.since)
    return desired


def history(settings: Settings, pipeline: str) -> tuple[Event, ...]:
    """What was done, oldest first."""
    path = layout.job_file(settings, pipeline, "history.json")
    return read_value(path, _events, "restarts are counted from zero") or ()


def _events(given: object) -> tuple[Event, ...]:
    if not isinstance(given, list):
        raise TypeError("no list of events")
    # an event without a place is one of an earlier version, and counts as one of here
    events = tuple(typed(Event, {"place": {}} | event, later=True) for event in given)
    for event in events:
        datetime.fromisoformat(event.at)
    return events


def note(settings: Settings, pipeline: str, event: Event) -> None:
    """Adds to the history; only for who is `acting`."""
    if wanted := read(settings, pipeline):
        event = replace(event, wished=wanted.since)
    kept = (*history(settings, pipeline), event)[-_KEPT:]
    replace_file(layout.job_file(settings, pipeline, "history.json"), [asdict(e) for e in kept])


def _wished(events: Sequence[Event]) -> str:
    """Since when the newest wish is that something was done for; empty without any."""
    return max((event.wished for event in events), default="")


def ended_for(settings: Settings, pipeline: str) -> str:
    """The command that was to end the job, exchange versions of a table and start the job again, and has not started it.

    Empty if there is none, or the job is not to run.
    """
    wanted = read(settings, pipeline)
    if wanted is None or wanted.state != "running":
        return ""
    what = ("started", "restarted", "exchanging")
    last = next((e for e in reversed(history(settings, pipeline)) if e.what in what), None)
    return last.command if last else ""


def check_supervised(settings: Settings, pipeline: str) -> None:
    """Raises JobError if the job, which runs, does so in the foreground of a command, which would end with it."""
    wanted = read(settings, pipeline)
    if wanted and wanted.state == "unsupervised":
        raise JobError(
            f"pipeline={pipeline!r}: it runs in the foreground ({wanted.by}), and what runs it there starts it again; "
            f"`{command('stop', pipeline)}` drains it; after that `{command('start', pipeline)}` has it supervised"
        )


class Busy(JobError):
    """Another starts or ends the job's process, which takes moments."""


@contextmanager
def acting(settings: Settings, pipeline: str, wait: float = 0.0) -> Iterator[None]:
    """The right to start or end the job's process: one holder at a time, gone with it.

    Raises JobError if another holds it for longer than `wait` seconds.
    """
    make_root(settings)
    try:
        lock = locks.alone(layout.job_file(settings, pipeline, "actor"), wait)
    except locks.Locked as err:
        raise Busy(
            f"pipeline={pipeline!r}: one at a time starts or ends its process, and another is at it; try again in a moment"
        ) from err
    with lock:
        yield


def restarts(events: Sequence[Event], since: datetime) -> list[Event]:
    """The restarts nobody asked for, from `since` on."""
    return [e for e in events if e.what == "restarted" and e.moment >= since]
