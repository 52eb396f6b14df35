"""Processes of this machine. Each is known by its pid and the time when it was started, because a pid comes again."""

import psutil

# seconds; the kernel's boot time, which start times are counted from, is corrected by NTP
_CLOCK_STEP = 2.0


def running(pid: int, started: float) -> psutil.Process | None:
    """That very process, or None once it has ended, whoever has the pid now."""
    try:
        process = psutil.Process(pid)
        # a zombie with threads left is a killed JVM that still holds its ports and files, and may still be writing
        ended = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
        same = abs(process.create_time() - started) < _CLOCK_STEP
        return process if same and not ended else None
    except psutil.NoSuchProcess:
        return None
