"""The place of a process: a pid says nothing on another host, after another boot, or in another PID namespace (a container).

A process elsewhere can be neither looked at nor ended from here. Only the age of its lease is known, by the clock of the
file system that holds the root: the clocks of two hosts differ, the time of a file does not.
"""

import os
from dataclasses import dataclass
from functools import cache

from lakehouse import processes


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
