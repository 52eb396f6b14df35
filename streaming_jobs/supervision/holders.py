"""Who holds the right to run a pipeline, and how long another must wait for it.

`streaming_jobs.supervision.lease` takes and renews it.

<root>/_jobs/<pipeline>/epoch.json  the holder (Holder)
<root>/_jobs/<pipeline>/lease       written every second by the holder, as long as it lives: its time is when that was last
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lakehouse.durations import duration
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import file_system_now, modified, read_value
from lakehouse.storage.disk.typed_values import typed
from streaming_jobs.supervision.places import UNKNOWN, Place


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose turn it is.

    The process is its pid and its start (`lakehouse.processes`), `job` the name it runs under.
    """

    epoch: int
    pid: int
    process_started: float
    since: str
    job: str = ""
    place: Place = UNKNOWN
    ended: bool = False  # it has said that it writes no more

    def __str__(self) -> str:
        return f"pid={self.pid} since {self.since}" + (
            "" if self.place.is_here else f" ({self.place})"
        )


def holder(path: Path) -> Holder | None:
    """The lease in force by its file `epoch.json`; None before the first."""
    meaning = "the next holder counts on from the epoch in status.json"
    return read_value(path, partial(typed, Holder, later=True), meaning)


def left(settings: Settings, job: str, said: Place) -> float:
    """For how many seconds a process that runs elsewhere may still write to tables of the job.

    0 if none does.

    `said` is where the job's last process ran by its status, if a file `epoch.json` is gone.
    Whoever holds the lease here is known by its pid, and counts for nothing.
    """
    within = duration(settings.heartbeat_within).total_seconds()
    paths = (
        layout.job_file(settings, pipeline, "epoch.json") for pipeline in settings.members(job)
    )
    return max((_left(path, within, said) for path in paths), default=0.0)


def _left(path: Path, within: float, said: Place) -> float:
    now = holder(path)
    if (now.place if now else said).is_here or (now and now.ended):
        return 0.0
    renewed = modified(path.with_name("lease")) or modified(path)
    if renewed is None:
        return 0.0
    return max(within - (file_system_now(path.parent) - renewed), 0.0)
