"""The holder of the right to run a pipeline, and the wait of any other. `lease` acquires and renews that right.

<root>/_jobs/<pipeline>/epoch.json  the holder (Holder)
<root>/_jobs/<pipeline>/lease       touched by the holder every second, as long as it lives
"""

from dataclasses import dataclass
from pathlib import Path

from lakehouse.durations import duration
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import file_system_now, modified, read_value
from streaming_jobs.supervision.places import UNKNOWN, Place


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, by its pid and its start (`lakehouse.processes`); `job` is the name it runs under."""

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
    """Returns the lease in force by its file `epoch.json`; None before the first."""
    meaning = "the next holder counts on from the epoch in status.json"
    return read_value(path, Holder, meaning, later=True)


def left(settings: Settings, job: str, place: Place) -> float:
    """Returns the seconds for which a process elsewhere may still write to tables of the job; 0 if none does.

    `place` is that of the job's last process by its status, if a file `epoch.json` is gone. A holder here is known by
    its pid, and does not count.
    """
    within = duration(settings.heartbeat_within).total_seconds()
    paths = (
        layout.job_file(settings, pipeline, "epoch.json") for pipeline in settings.members(job)
    )
    return max((_left(path, within, place) for path in paths), default=0.0)


def _left(path: Path, within: float, place: Place) -> float:
    now = holder(path)
    if (now.place if now else place).is_here or (now and now.ended):
        return 0.0
    renewed = modified(path.with_name("lease")) or modified(path)
    if renewed is None:
        return 0.0
    return max(within - (file_system_now(path.parent) - renewed), 0.0)
