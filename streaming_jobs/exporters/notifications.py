"""Notifications: a notice of a failure is given to a command, or sent to an address, once.

<root>/_notifications/sent.json  the attempts of the last day, by the key of their notice
<root>/_notifications/sender     the lock of the process that sends

The sender may be Dagster, `lakehouse stream supervise` or both. A process killed between sending and noting sends again.
"""

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise, product
from typing import Literal, NamedTuple

from lakehouse import addresses
from lakehouse.addresses import WITHIN
from lakehouse.backoff import Backoff
from lakehouse.ranges import text
from lakehouse.runtime.http_client import Client, Unanswered
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.disk.files import moved_at, read_value, replace_file
from lakehouse.storage.disk.root import make as make_root
from streaming_jobs import progress
from streaming_jobs.supervision import desired, scheduled, supervisor
from streaming_jobs.supervision.desired import Event
from streaming_jobs.supervision.jobs import command

MOST = 5  # attempts
MEMORY = timedelta(days=1)  # what is older is not sent
_ROUND = 5.0  # seconds, after which no further attempt begins: others wait for this
_SAID = 500  # bytes of a command's output that are repeated
_ATTEMPTS = Backoff(30, 3600)
_CODE = re.compile(r"error=(\d{3})\b")  # of an HTTP answer, in what apprise logs
What = Literal[
    "job_failed",
    "job_crash_loop",
    "job_files_lost",
    "query_paused",
    "checkpoint_replaced",
    "verdict_different",
    "freshness_failed",
]
_MEANINGS: dict[What, tuple[str, str]] = {  # the failure in a few words, and the remedy
    "job_failed": (
        "the streaming job failed",
        "It is restarted by itself, a scheduled one at its next time. `{logs}` shows how it ended.",
    ),
    "job_crash_loop": (
        "the streaming job is in a crash loop and is not restarted",
        "Remove the cause, then run `{start}`. The job resumes where it was.",
    ),
    "job_files_lost": (
        "files of the streaming job are lost",
        "`lakehouse stream status` shows the job. Run `{start}` if it should run and does not.",
    ),
    "query_paused": (
        "a query is paused",
        "Remove the cause, then run `{restart}`. If the function was corrected, run "
        "`lakehouse table accept {table}` before.",
    ),
    "checkpoint_replaced": (
        "the stream began a new generation",
        "Nothing, if you know the reason. No row is lost or doubled.",
    ),
    "verdict_different": (
        "stream and batch differ",
        "`lakehouse reconcile status` names the cause. `lakehouse reconcile repair {table}` rewrites the range.",
    ),
    "freshness_failed": (
        "the table is stale",
        "`lakehouse stream status` shows whether its job runs and how far it lags.",
    ),
}
_NOTICES: dict[str, What] = {"restarted": "job_failed", "crash_loop": "job_crash_loop"}
_OUTAGE = timedelta(minutes=10)  # longer than the waits between two restarts


@dataclass(frozen=True, slots=True)
class Notice:
    """One failure and its time. `start` and `end` are its range of event time, if it is about one."""

    what: What
    pipeline: str
    why: str
    at: datetime
    table: str = ""
    start: datetime | None = None
    end: datetime | None = None

    @property
    def key(self) -> str:
        """The identity of the notice."""
        return f"{self.what} {self.table or self.pipeline} {text(self.at)}"

    @property
    def title(self) -> str:
        return f"{self.table or self.pipeline}: {_MEANINGS[self.what][0]}"

    @property
    def body(self) -> str:
        """The facts for a person, a line each."""
        commands = {verb: command(verb, self.pipeline) for verb in ("logs", "start", "restart")}
        facts = {
            "What": self.what,
            "Pipeline": self.pipeline,
            "Table": self.table,
            "Range": " to ".join(self._range),
            "Why": self.why,
            "When": text(self.at),
            "What to do": _MEANINGS[self.what][1].format(table=self.table, **commands),
        }
        return "\n".join(f"{name}: {fact}" for name, fact in facts.items() if fact)

    @property
    def document(self) -> dict[str, object]:
        """The facts for a program."""
        return {
            "what": self.what,
            "pipeline": self.pipeline,
            "table": self.table or None,
            "range": dict(zip(("start", "end"), self._range, strict=False)) or None,
            "why": self.why,
            "at": text(self.at),
            "title": self.title,
            "text": self.body,
        }

    @property
    def _range(self) -> list[str]:
        return [text(self.start), text(self.end)] if self.start and self.end else []


class Notification(NamedTuple):
    """A receiver: its key in sent.json, its name in messages. `deliver` returns why it failed; empty if it did not."""

    key: str
    name: str
    deliver: Callable[[Notice], str]


@dataclass(frozen=True, slots=True)
class Tried:
    """The attempts to send a notice: their number, the time of the last, and True if that got through."""

    times: int
    at: datetime
    sent: bool = False

    @property
    def due(self) -> datetime:
        return self.at + timedelta(seconds=_ATTEMPTS.after(self.times))


def wanted(settings: Settings) -> bool:
    """Returns True if the settings name a receiver."""
    return bool(settings.notification_command or settings.notification_urls)


def send(settings: Settings, notices: Iterable[Notice]) -> list[str]:
    """Sends the notices that were not sent yet, oldest first, and returns the failures of that; it never raises them.

    Each receiver is tried at most `MOST` times for a notice, with growing waits. After its first failure, and after 5
    seconds, the rest waits for the next call, and so do all notices while another process sends.
    """
    if not wanted(settings):
        return []
    try:
        make_root(settings)
        with locks.alone(layout.notification_file(settings, "sender"), wait=0):
            return _send(settings, notices, _sent(settings))
    except locks.Locked:
        return []
    except OSError as err:  # nothing is sent that cannot be noted: it would be sent again and again
        return [
            f"notifications, root={settings.root}: nothing is sent that cannot be noted ({err}); make room"
        ]


def _send(settings: Settings, notices: Iterable[Notice], sent: dict[str, Tried]) -> list[str]:
    began, now = time.monotonic(), datetime.now(UTC)
    failures: dict[str, str] = {}
    recent = sorted((n for n in notices if n.at > now - MEMORY), key=lambda n: n.at)
    for notice, (receiver, name, deliver) in product(recent, _notifications(settings)):
        key = f"{receiver} {notice.key}"
        before = sent.get(key)
        done = before and (before.sent or before.times >= MOST or now < before.due)
        if done or name in failures or time.monotonic() - began > _ROUND:
            continue
        sent[key] = tried = Tried(before.times + 1 if before else 1, now)
        _note(settings, sent, now)
        if failure := deliver(notice):
            last = "the last attempt" if tried.times == MOST else f"attempt {tried.times} of {MOST}"
            failures[name] = f"{name} did not get {notice.key!r} ({last}): {failure}"
            continue
        sent[key] = replace(tried, sent=True)
        _note(settings, sent, now)
    return list(failures.values())


def _sent(settings: Settings) -> dict[str, Tried]:
    """Returns the attempts of the last day by the key of their notice, and of their receiver."""
    path = layout.notification_file(settings, "sent.json")
    meaning = "what was sent within a day may be sent again"
    return read_value(path, dict[str, Tried], meaning) or {}


def _note(settings: Settings, sent: dict[str, Tried], now: datetime) -> None:
    recent = {
        key: asdict(tried) | {"at": tried.at.isoformat()}
        for key, tried in sent.items()
        if tried.at > now - MEMORY
    }
    replace_file(layout.notification_file(settings, "sent.json"), recent)


def _notifications(settings: Settings) -> Iterator[Notification]:
    if command := settings.notification_command:
        yield Notification("notification_command", "notification_command", partial(_run, command))
    for number, address in enumerate(settings.notification_urls):
        # its place in the list may change, and the file is to have no secret
        digest = hashlib.sha256(address.encode()).hexdigest()[:8]
        name = f"notification_urls[{number}], {addresses.shown(address)},"
        deliver = _post if addresses.is_http(address) else _send_by_apprise
        yield Notification(f"notification_urls {digest}", name, partial(deliver, address))


def _run(command: str, notice: Notice) -> str:
    # no pipe: processes that the command leaves running would hold it open
    with tempfile.TemporaryFile() as file:
        try:
            process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        except OSError as err:
            return f"{err.strerror}"
        with process:
            try:
                process.communicate(json.dumps(notice.document).encode(), WITHIN)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"killed, because it was not done within {WITHIN:g} s"
        file.seek(0)
        output = file.read(_SAID).decode(errors="replace").strip()
        return f"exit code {process.returncode}: {output}" if process.returncode else ""


def _post(url: str, notice: Notice) -> str:
    headers = {"Content-Type": "application/json", "User-Agent": "unified-lakehouse"}
    body = json.dumps(notice.document).encode()
    try:
        with Client().ask("POST", url, body, headers, within=WITHIN) as answer:
            done = 200 <= answer.status < 300
            return "" if done else f"HTTP Error {answer.status}: {answer.reason}"
    except Unanswered as err:
        # the text of an HTTPException may repeat the address
        return str(err) if isinstance(err.why, OSError | str) else type(err.why).__name__
    except ValueError as err:
        return type(err).__name__  # so may this


def _send_by_apprise(address: str, notice: Notice) -> str:
    from apprise import AppriseResultStatus, NotifyFormat, NotifyType

    result = addresses.sender(address).notify(
        notice.body, notice.title, NotifyType.FAILURE, NotifyFormat.TEXT
    )
    if result:
        return ""
    if result.status == AppriseResultStatus.TIMEOUT:
        return f"it was not done within {WITHIN:g} s"
    # its other words may repeat parts of the address
    codes = [_CODE.search(entry.message) for entry in result.logs()]
    answer = next((f"the answer was {code[1]}" for code in codes if code), "it was not taken")
    return f"{answer}; `apprise -vv --body=test ADDRESS` shows more"


def of_job(settings: Settings, pipeline: str) -> list[Notice]:
    """Returns the notices of the job's history, which keeps each failure, however soon it was healed, and of its status.

    Consecutive restarts for one reason are one notice: while the broker is away there is no end of them.
    """
    done = [event for event in desired.history(settings, pipeline) if event.what in _NOTICES]
    first = done[:1] + [event for before, event in pairwise(done) if not _again(before, event)]
    notices = [Notice(_NOTICES[e.what], pipeline, e.why, e.moment) for e in first]
    if status := progress.read(settings, pipeline):
        for q in status.queries:
            if q.state == "paused":
                why, since = f"{q.offsets} {q.error}".strip(), datetime.fromisoformat(q.since)
                notices.append(Notice("query_paused", pipeline, why, since, q.table))
            if q.begun:
                started = datetime.fromisoformat(status.started_at)
                notices.append(Notice("checkpoint_replaced", pipeline, q.begun, started, q.table))
    return [*notices, *_run_failed(settings, pipeline), *_files_lost(settings, pipeline)]


def _run_failed(settings: Settings, pipeline: str) -> list[Notice]:
    """Returns a notice if the last run of a scheduled job ended badly: no restart in its history says so."""
    if settings.freshness_of(pipeline).cron is None or scheduled.off(settings, pipeline):
        return []
    if launched := supervisor.silent_launch(settings, pipeline):
        if supervisor.is_launching(settings, pipeline, launched):
            return []
        pid, at = launched.pid, launched.moment
    else:  # the status is read last: a process may just have spoken
        status = supervisor.status(settings, pipeline)
        if status is None or status.state not in ("failed", "dead"):
            return []
        pid, at = status.pid, datetime.fromisoformat(status.heartbeat)
    return [Notice("job_failed", pipeline, scheduled.why_ended(settings, pipeline, pid), at)]


def _files_lost(settings: Settings, pipeline: str) -> list[Notice]:
    """Returns a notice for each file of the job that was unreadable, and one if nothing says any more what is wanted of it."""
    lost = [
        (f"file={path}: it was unreadable and moved aside", moved_at(path))
        for path in progress.unreadable(settings, pipeline)
    ]
    done = desired.history(settings, pipeline)
    if done and (why := desired.lost(settings, pipeline)):
        lost.append((why, done[-1].moment))
    return [Notice("job_files_lost", pipeline, why, at) for why, at in lost]


def _again(before: Event, event: Event) -> bool:
    same = (before.what, before.why) == (event.what, event.why)
    return same and event.moment - before.moment < _OUTAGE
