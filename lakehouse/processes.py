"""Processes of this machine, identified by pid and start, because a pid is used again.

The kernel counts the start in ticks since the boot, which no clock moves. psutil computes its time of start from
these and the clock, so it moves with every step of the clock.
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

_LOOK = 0.02  # seconds between two looks at a process that is waited for
_CLOCK_STEP = 2.0  # seconds between two looks at a time that an earlier version wrote
_SINCE_1970 = 1e9  # a start in seconds since the boot is less, one since 1970 more


@cache
def boot_id() -> str:
    """Returns the id of the machine's present boot; empty if the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return ""


def started(pid: int) -> float:
    """Returns when a process was started, in seconds since the boot (or since 1970, without `/proc`); 0 if it is gone."""
    try:
        return _ticks(pid) / os.sysconf("SC_CLK_TCK")
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return 0.0
    except ProcessLookupError:
        return 0.0
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def detached(
    command: Sequence[str],
    log: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> int:
    """Starts a process that outlives this one, its output appended to the log, and returns its pid without waiting for it."""
    # By way of a shell that ends at once: in a session of its own no terminal reaches the process,
    # and as nobody's child it leaves no zombie behind, whoever started it.
    shell = ["/bin/sh", "-c", '"$@" </dev/null >>"$0" 2>&1 & echo $!', str(log.absolute())]
    run = subprocess.run(
        [*shell, *command],
        stdout=subprocess.PIPE,
        check=True,
        cwd=cwd,
        env=env,
        start_new_session=True,
        pass_fds=pass_fds,
    )
    return int(run.stdout)


def running(pid: int, start: float) -> psutil.Process | None:
    """Returns that very process, or None once it has ended, whoever has the pid now."""
    try:
        process = psutil.Process(pid)
        # a zombie with threads left is a killed JVM that still holds its ports and files, and may still be writing
        ended = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
        return process if _same(process, start) and not ended else None
    except psutil.NoSuchProcess:
        return None


def wait(pid: int, start: float, seconds: float) -> bool:
    """Waits for the end of that very process, at most so many seconds, and returns True if it has ended."""
    deadline = time.monotonic() + seconds
    while running(pid, start):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK)
    return True


def cpu_seconds(*pids: int) -> float:
    """Returns the CPU time of the processes, without those that are gone."""
    total = 0.0
    for pid in filter(None, pids):
        with suppress(psutil.Error):
            total += sum(psutil.Process(pid).cpu_times()[:2])
    return total


def family(pid: int) -> list[int]:
    """Returns the pids of a process and all its descendants that live."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return []


def is_suspended(pid: int) -> bool:
    """Returns True if the process was suspended (SIGSTOP, a debugger): it waits for nothing, and computes nothing."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def cpu_share() -> float:
    """Returns the share of a core that a busy thread gets: less than 1 while more of them run than there are cores."""
    return min((os.cpu_count() or 1) / max(os.getloadavg()[0], 0.01), 1.0)


def _same(process: psutil.Process, start: float) -> bool:
    if start < _SINCE_1970:
        return start == started(process.pid)
    return abs(process.create_time() - start) < _CLOCK_STEP  # as an earlier version wrote it


def _ticks(pid: int) -> int:
    """Returns field 22 of `stat`, counted after the name of the program, which may hold anything."""
    stat = Path("/proc", str(pid), "stat").read_bytes()
    return int(stat.rpartition(b")")[2].split()[19])
