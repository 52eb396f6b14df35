"""Reports of the library while it works, by `logging`, on standard error.

Each module logs under its own name. A process (the command line, a streaming job, a code location of
Dagster) calls `configure` once. A program that uses the library and configures logging by itself does not.
"""

import json
import logging
import sys
from datetime import UTC, datetime

from lakehouse.settings import Settings

PACKAGES = ("lakehouse", "streaming_jobs", "batch_jobs", "assets")


_warned: set[tuple] = set()


def warn_once(log: logging.Logger, message: str, *about: object) -> None:
    """Logs a warning once in the life of a process for its subject, by default its text."""
    if (key := (log.name, *(about or (message,)))) not in _warned:
        _warned.add(key)
        log.warning("%s", message)


class _Handler(logging.StreamHandler):
    """Writes to the present standard error: a test, or a daemon, may have replaced it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return sys.stderr


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{level}{record.getMessage()}{_traceback(self, record)}"


class _Timed(_Text):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_at(record)} {super().format(record)}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        traceback = _traceback(self, record).strip()
        return json.dumps(line | ({"traceback": traceback} if traceback else {}))


def configure(settings: Settings, *, timed: bool = False) -> None:
    """Makes the loggers of these packages write lines of `log_format` from `log_level` on.

    With `timed`, lines of text begin with the time, as in the log of a job; those of JSON always have it.
    """
    handler = _Handler()
    handler.setFormatter(
        _Json() if settings.log_format == "json" else _Timed() if timed else _Text()
    )
    for package in PACKAGES:
        logger = logging.getLogger(package)
        logger.handlers = [handler]
        logger.setLevel(settings.log_level.upper())


def _at(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "\n" + formatter.formatException(record.exc_info) if record.exc_info else ""
