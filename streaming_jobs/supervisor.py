"""Starts, stops and looks at the processes of streaming jobs. Knows them by pid and start time only."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from lakehouse import catalog
from lakehouse.errors import JobError
from lakehouse.settings import Settings, to_environment
from streaming_jobs import progress
from streaming_jobs.progress import JobStatus

_LOGS = 3
_LOOK = 0.1  # seconds between two looks at a status file, which is all that a job shares with others


def status(settings: Settings, pipeline: str) -> JobStatus | None:
    """What the job says of itself; None if it never ran."""
    return progress.read(settings, pipeline)


def start(settings: Settings, pipeline: str, *, wait: float = 60) -> JobStatus:
    """Starts the job, detached, and returns when it runs; one that runs already is returned as it is.

    Raises JobError with the end of its log if it fails, or does not run within `wait` seconds.
    """
    catalog.load(settings).of_pipeline(pipeline)
    now = status(settings, pipeline)
    if now and now.alive and now.state in ("starting", "running"):
        return _until(settings, pipeline, now.pid, wait)
    log = _fresh_log(settings, pipeline)
    # By way of a shell that ends at once: in a session of its own no terminal reaches the job, and as nobody's child
    # it leaves no zombie behind, whoever started it.
    detached = ["/bin/sh", "-c", '"$@" </dev/null >>"$0" 2>&1 & echo $!', str(log)]
    command = [*detached, sys.executable, "-m", "streaming_jobs.driver", pipeline]
    environment = os.environ | to_environment(settings)
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment, start_new_session=True)
    return _until(settings, pipeline, int(run.stdout), wait)


def stop(settings: Settings, pipeline: str, *, timeout: float = 60) -> JobStatus | None:
    """Drains and stops the job; None if it never ran. After `timeout` seconds it is killed: it resumes all the same."""
    now = status(settings, pipeline)
    if now is None or not now.alive:
        return now
    process = psutil.Process(now.pid)
    process.terminate()
    try:
        process.wait(timeout)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(10)
    # its JVM ends when it sees the pipe to its parent closed, moments later
    if progress.is_alive(now.jvm, now.jvm_started):
        with suppress(psutil.NoSuchProcess):
            psutil.Process(now.jvm).wait(timeout)
    return status(settings, pipeline)


def log_path(settings: Settings, pipeline: str) -> Path:
    return progress.job_folder(settings, pipeline) / "driver.log"


def _until(settings: Settings, pipeline: str, pid: int, wait: float) -> JobStatus:
    deadline = time.monotonic() + wait
    started = psutil.Process(pid).create_time() if psutil.pid_exists(pid) else 0.0
    while time.monotonic() < deadline:
        ended = not progress.is_alive(pid, started)  # looked at first: what it said last is then final
        now = status(settings, pipeline)
        if now and now.pid == pid and now.state == "running":
            return now
        if ended:
            raise JobError(f"pipeline={pipeline!r}: its process ended before it ran:\n{log_tail(settings, pipeline)}")
        time.sleep(_LOOK)
    raise JobError(
        f"pipeline={pipeline!r}: not running after {wait:g} s; its log ends:\n{log_tail(settings, pipeline)}"
    )


def _fresh_log(settings: Settings, pipeline: str) -> Path:
    log = log_path(settings, pipeline)
    log.parent.mkdir(parents=True, exist_ok=True)
    for i in range(_LOGS, 0, -1):
        older = log.with_suffix(f".log.{i - 1}") if i > 1 else log
        if older.exists():
            older.replace(log.with_suffix(f".log.{i}"))
    return log


def log_tail(settings: Settings, pipeline: str, lines: int = 15) -> str:
    log = log_path(settings, pipeline)
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"
