"""The output of a job's process: `driver.log`, and those of the processes before it."""

import json
import re
from pathlib import Path

from lakehouse.settings import Settings
from lakehouse.storage import layout, text_logs

PROGRESS = "progress: "  # begins a line that says how a table is, which is no reason for an end
_LOGS = 3
_BEFORE = re.compile(r"^(\d{4}-\d\d-\d\dT\S+ )?(error: )?")  # the time and the level of a line
_LOG_BYTES = 16 << 20


def log_path(settings: Settings, pipeline: str) -> Path:
    return layout.job_file(settings, pipeline, "driver.log")


def fresh_log(settings: Settings, pipeline: str) -> Path:
    log = log_path(settings, pipeline)
    text_logs.set_aside(log, _LOGS)
    return log


def shorten_log(settings: Settings, pipeline: str, longest: int = _LOG_BYTES) -> None:
    """Moves the log of a running process aside once it is long, as that of an earlier one."""
    text_logs.shorten(log_path(settings, pipeline), longest, _LOGS)


def log_tail(settings: Settings, pipeline: str, lines: int = 15) -> str:
    tail = text_logs.tail(log_path(settings, pipeline), lines)
    return "(no log)" if tail is None else "\n".join(tail)


def last_error(settings: Settings, pipeline: str) -> str:
    """Why a process ended that had not come to a status of its own: the last line of its log that is no progress.

    Empty if it says nothing.
    """
    tail = text_logs.tail(log_path(settings, pipeline), lines=200) or ()
    messages = (_said(line) for line in tail if line.strip())
    lines = [message for message in messages if not message.startswith(PROGRESS)]
    return lines[-1][:2000] if lines else ""


def _said(line: str) -> str:
    """The message of a line, whichever way the job logs; a line that a function of the user's has printed, as it is."""
    try:
        record = json.loads(line)
        return (record.get("traceback") or record["message"]).splitlines()[-1]
    except (ValueError, KeyError, AttributeError, IndexError):  # no line of a log in JSON
        return _BEFORE.sub("", line)
