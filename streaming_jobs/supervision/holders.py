"""The place of a process, the holder of the right to run a pipeline, and the wait of any other for it.

A pid says nothing on another host, after another boot, or in another PID namespace (a container). A process elsewhere can be
neither looked at nor ended from here. Only the age of its lease is known, by the clock of the file system that holds the
root: the clocks of two hosts differ, the time of a file does not. `lease` acquires and renews that right.

<root>/_jobs/<pipeline>/epoch.json  the holder (Holder)
<root>/_jobs/<pipeline>/lease       touched by the holder every second, as long as it lives
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lakehouse import processes
from lakehouse.durations import duration
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import file_system_now, modified, read_value


@dataclass(frozen=True, slots=True)
class Place:
    """One table of processes. An empty one, of a file that an earlier version wrote, counts as this one."""

    host: str = ""
    boot: str = ""
    namespace: str = ""

    @property
    def is_here(self) -> bool:
        return self in (UNKNOWN, here())

    def __str__(self) -> str:
        return f"host={self.host}, boot={self.boot[:8]}, PID namespace={self.namespace}"


UNKNOWN = Place()


def here() -> Place:
    """Returns the place of this process, whose host may be renamed while it runs."""
    return Place(os.uname().nodename, processes.boot_id(), _namespace())


@cache
def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]")
    except OSError:
        return ""


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
