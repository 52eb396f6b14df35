"""Notifications: what went wrong is given to a command or sent by HTTP, once.

<root>/_notifications/sent.json  what was sent, or tried, within the last day: by a notice's key
<root>/_notifications/sender     locked by whoever sends, for as long as that takes

The sender may be Dagster, `lakehouse stream supervise` or both. At least once: a process killed
between sending and noting sends again.
"""

import http.client
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from typing import Literal

from lakehouse.ranges import text
from lakehouse.settings import Settings
from lakehouse.storage import layout, locks
from lakehouse.storage.files import read_value, replace_file

MOST = 5  # attempts
MEMORY = timedelta(days=1)  # what is older is not sent
_WITHIN = 5.0  # seconds for one attempt
_ROUND = 5.0  # seconds, after which no further attempt begins: others wait for this
_SAID = 500  # bytes of what a command said that are repeated
_WAIT = timedelta(seconds=30)  # before the second attempt; doubled before each later one
What = Literal[
    "job_failed",
    "job_crash_loop",
    "job_files_lost",
    "query_paused",
    "checkpoint_replaced",
    "verdict_different",
    "freshness_failed",
]


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that went wrong, and when.

    `start` and `end`: the range of event time, if it is about one.
    """

    what: What
    pipeline: str
    why: str
    at: datetime
    table: str = ""
    start: datetime | None = None
    end: datetime | None = None

    @property
    def key(self) -> str:
        """Two notices of one key are one and the same."""
        return f"{self.what} {self.table or self.pipeline} {text(self.at)}"

    @property
    def document(self) -> dict[str, object]:
        """What a notification is given."""
        span = (
            {"start": text(self.start), "end": text(self.end)} if self.start and self.end else None
        )
        return {
            "what": self.what,
            "pipeline": self.pipeline,
            "table": self.table or None,
            "range": span,
            "why": self.why,
            "at": text(self.at),
        }


@dataclass(frozen=True, slots=True)
class Tried:
    """How often a notice was tried, when last (ISO 8601 UTC), and whether it got through."""

    times: int
    at: str
    sent: bool = False

    @property
    def moment(self) -> datetime:
        return datetime.fromisoformat(self.at)

    @property
    def due(self) -> datetime:
        return self.moment + _WAIT * 2 ** (self.times - 1)


def wanted(settings: Settings) -> bool:
    """Whether anybody is to be notified."""
    return bool(settings.notification_command or settings.notification_url)


def send(settings: Settings, notices: Iterable[Notice]) -> list[str]:
    """Sends what was not sent yet, oldest first.

    Returns what went wrong with that, never raises for it.

    Each notification is tried at most `MOST` times for a notice, with growing waits. What is left
    after its first failure, or after 5 seconds, waits for the next call; so does all of it while
    another process is sending.
    """
    if not wanted(settings):
        return []
    try:
        with _alone(settings) as sent:
            return _send(settings, notices, sent) if sent is not None else []
    except OSError as err:  # nothing is sent that cannot be noted: it would be sent again and again
        return [
            f"notifications, root={settings.root}: what is sent must be noted and cannot be, so nothing is sent "
            f"({err}); make room"
        ]


def _send(settings: Settings, notices: Iterable[Notice], sent: dict[str, Tried]) -> list[str]:
    began, now = time.monotonic(), datetime.now(UTC)
    failures: dict[str, str] = {}
    recent = sorted((n for n in notices if n.at > now - MEMORY), key=lambda n: n.at)
    for notice, (name, deliver) in product(recent, _notifications(settings)):
        key = f"{name} {notice.key}"
        before = sent.get(key)
        done = before and (before.sent or before.times >= MOST or now < before.due)
        if done or name in failures or time.monotonic() - began > _ROUND:
            continue
        sent[key] = tried = Tried(before.times + 1 if before else 1, now.isoformat())
        _note(settings, sent, now)
        if failure := deliver(notice):
            last = "the last attempt" if tried.times == MOST else f"attempt {tried.times} of {MOST}"
            failures[name] = f"{name} did not get {notice.key!r} ({last}): {failure}"
            continue
        sent[key] = replace(tried, sent=True)
        _note(settings, sent, now)
    return list(failures.values())


@contextmanager
def _alone(settings: Settings) -> Iterator[dict[str, Tried] | None]:
    """What was sent so far, for one holder at a time; None for any other."""
    try:
        lock = locks.alone(layout.notification_file(settings, "sender"), wait=0)
    except locks.Locked:
        yield None
        return
    noted = layout.notification_file(settings, "sent.json")
    with lock:
        yield read_value(noted, _tried, "what was sent within a day may be sent again") or {}


def _tried(given: dict) -> dict[str, Tried]:
    tried = {key: Tried(**each) for key, each in given.items()}
    for each in tried.values():
        datetime.fromisoformat(each.at)
    return tried


def _note(settings: Settings, sent: dict[str, Tried], now: datetime) -> None:
    kept = {key: asdict(tried) for key, tried in sent.items() if tried.moment > now - MEMORY}
    replace_file(layout.notification_file(settings, "sent.json"), kept)


def _notifications(settings: Settings) -> list[tuple[str, Callable[[Notice], str]]]:
    """Their names and what calls them, which returns why it failed; empty if it did not."""
    notifications = [
        ("notification_command", settings.notification_command, _run),
        ("notification_url", settings.notification_url, _post),
    ]
    return [(name, partial(call, value)) for name, value, call in notifications if value]


def _run(command: str, notice: Notice) -> str:
    # no pipe: what the command leaves running would hold it open
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        except OSError as err:
            return f"{err.strerror}"
        with process:
            try:
                process.communicate(json.dumps(notice.document).encode(), _WITHIN)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"killed, because it was not done within {_WITHIN:g} s"
        said.seek(0)
        output = said.read(_SAID).decode(errors="replace").strip()
        return f"exit code {process.returncode}: {output}" if process.returncode else ""


def _post(url: str, notice: Notice) -> str:
    headers = {"Content-Type": "application/json", "User-Agent": "unified-lakehouse"}
    request = urllib.request.Request(
        url, json.dumps(notice.document).encode(), headers, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_WITHIN):
            return ""
    except urllib.error.HTTPError as err:
        with err:
            return str(err)
    except OSError as err:
        return str(err)
    except (ValueError, http.client.HTTPException) as err:
        return type(err).__name__  # its text may repeat the address
