"""The output of a job's process: `driver.log`, and those of the processes before it."""

import json
import re
from pathlib import Path

from lakehouse.settings import Settings
from lakehouse.storage.disk import layout, text_logs

PROGRESS = "progress: "  # begins a line that says how a table is
_LOGS = 3
_LAST = 200  # lines at the end of a log among which an error is looked for
_LEVEL = re.compile(r"(?:\d{4}-\d\d-\d\dT\S+ )?(?:error|critical): (.*)")
# the last line of a traceback, what a JVM ends with, a line at level ERROR of Spark's
_EXCEPTION = re.compile(
    r"(?:Caused by: |Exception in thread \S+ )?[\w.$]+(?:Error|Exception|Interrupt)\b(?::|$)"
    r"|Fatal |# There is insufficient memory|(?:\S+ ){0,3}(?:ERROR|FATAL)\b"
)
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
    """Returns the last error in the log, the reason why a process ended before its first status.

    It is empty if there is none, as when the process was killed: output of a JVM or a function is no reason.
    """
    tail = text_logs.tail(log_path(settings, pipeline), _LAST) or ()
    return next(filter(None, map(_error, reversed(tail))), "")[:2000]


def _error(line: str) -> str:
    """Returns the error in a line, whichever way the job logs; empty for any other line."""
    try:
        record = json.loads(line)
        if record["level"] not in ("error", "critical"):
            return ""
        return (record.get("traceback") or record["message"]).splitlines()[-1]
    except (ValueError, LookupError, TypeError, AttributeError):  # no line of a log in JSON
        error = _LEVEL.match(line)
        return error[1] if error else line if _EXCEPTION.match(line) else ""
