"""The output of a job's process: `driver.log`, and those of the processes before it."""

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from lakehouse.settings import Settings
from lakehouse.storage import layout

_LOGS = 3
_BEFORE = re.compile(r"^(\d{4}-\d\d-\d\dT\S+ )?(error: )?")  # the time and the level of a line
_LOG_BYTES = 16 << 20


def log_path(settings: Settings, pipeline: str) -> Path:
    return layout.job_file(settings, pipeline, "driver.log")


def fresh_log(settings: Settings, pipeline: str) -> Path:
    log = log_path(settings, pipeline)
    log.parent.mkdir(parents=True, exist_ok=True)
    _set_aside(log)
    if log.exists():
        log.replace(_older(log, 1))
    return log


def _set_aside(log: Path) -> None:
    """Makes room for one more log behind those of earlier processes."""
    for i in range(_LOGS, 1, -1):
        if (older := _older(log, i - 1)).exists():
            older.replace(_older(log, i))


def _older(log: Path, number: int) -> Path:
    return log.with_suffix(f".log.{number}")


def shorten_log(settings: Settings, pipeline: str, longest: int = _LOG_BYTES) -> None:
    """Moves the log of a running process aside once it is long, as that of an earlier one.

    Copied and emptied, for the process keeps it open; a line written in between is lost.
    """
    log = log_path(settings, pipeline)
    if log.exists() and log.stat().st_size > longest:
        _set_aside(log)
        shutil.copy(log, _older(log, 1))
        os.truncate(log, 0)


def log_tail(settings: Settings, pipeline: str, lines: int = 15) -> str:
    log = log_path(settings, pipeline)
    return (
        "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
        if log.exists()
        else "(no log)"
    )


def last_error(settings: Settings, pipeline: str) -> str:
    """Why a process ended that had not come to a status of its own: the last line of its log.

    Empty if it says nothing.
    """
    lines = [line for line in log_tail(settings, pipeline).splitlines() if line.strip()]
    return _said(lines[-1])[:2000] if lines and log_path(settings, pipeline).exists() else ""


def _said(line: str) -> str:
    """The message of a line, whichever way the job logs."""
    if line.startswith("{"):
        with suppress(ValueError):
            found = json.loads(line)
            return found.get("traceback", found["message"]).splitlines()[-1]
    return _BEFORE.sub("", line)
