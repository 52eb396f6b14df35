"""A follower: `python -m streaming_jobs.exporters.follower TARGET` publishes a table to one target, version by version.

It starts no JVM. SIGTERM and SIGINT end it after the version that it is at, with code 0. Killed in any other way, the
next one claims the target and goes on from the position there. Exit codes: 0 stopped; 1 failed; 2 refused (settings,
declaration, a second process).
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

from lakehouse.backoff import Backoff
from lakehouse.declare import catalog
from lakehouse.errors import BrokerError, JobError, LakehouseError, SinkAway
from lakehouse.ranges import parse_instant
from lakehouse.settings import Settings
from lakehouse.sinks.follower import Follower
from lakehouse.stopping import Stopped
from lakehouse.storage.lakehouse import Lakehouse
from streaming_jobs import process, progress
from streaming_jobs.process import Process
from streaming_jobs.progress import QueryStatus, State
from streaming_jobs.supervision.job_logs import shorten_log
from streaming_jobs.supervision.jobs import follower_of
from streaming_jobs.supervision.lease import Lease

_log = logging.getLogger("streaming_jobs.exporters.follower")  # it runs as __main__

_HEARTBEAT = 1.0
_PAUSES = Backoff(1, 30)  # before a target that does not answer is asked again
_SLOW = timedelta(minutes=1)  # at one version without an answer of its target, which is said
_LOOK = 0.05  # seconds between two looks for the next version


class Job:
    """The process of one target: follows the table, and reports its position from a thread of its own."""

    def __init__(self, lakehouse: Lakehouse, target: str, lease: Lease) -> None:
        self.settings, self.name = lakehouse.settings, follower_of(target)
        self.process = Process(self.settings, self.name, lease)
        self.stopping = self.process.stopping
        self.follower = Follower(lakehouse, *lakehouse.catalog.target(target), self._going_on)
        self.state: State = "starting"
        self.sent = self.ignored = 0
        self.away = ""  # why the target is waited for
        self.busy_since: str | None = None
        self.waits = ""  # the remark on a target that has not answered for long
        self.refusal: Exception | None = None
        self.began = datetime.now(UTC)

    def run(self) -> None:
        """Publishes until asked to stop."""
        self.say()
        ended = threading.Event()
        heart = threading.Thread(target=self._beat, args=(ended,), name="heartbeat", daemon=True)
        heart.start()
        try:
            self._follow()
        finally:
            ended.set()
            heart.join()
        if self.refusal:
            raise self.refusal
        self.state = "stopped"
        self.say()

    def ask_to_stop(self) -> None:
        self.stopping.set()

    def fail(self, error: str, expected: bool) -> None:
        self.state = "failed"
        self.say(error[:2000])

    def say(self, error: str = "") -> None:
        """Renews the status file. Raises JobError if another process has taken over."""
        position = self.follower.position
        held = ", ".join(map(str, position.held)) if position else ""
        waits = self._waits()
        if waits and waits != self.waits:
            _log.warning(waits)
        self.waits = waits
        remarks = (
            self.away,
            waits,
            f"held back: versions {held}" if held else "",
            *self.follower.sink.remarks(),
            f"ignored: {self.ignored} rows of corrections" if self.ignored else "",
        )
        query = QueryStatus(
            self.follower.table.name,
            self.state == "running",
            batch=position.version if position else -1,
            rows=self.sent,
            lag=self.follower.behind(),
            trouble="; ".join(filter(None, remarks)),
            busy_since=self.busy_since,
        )
        self.process.say(
            state=self.state,
            queries=(query,),
            error=error,
            python_bytes=progress.memory(self.process.status.pid),
            well=(datetime.now(UTC) - self.began).total_seconds(),
        )

    def _follow(self) -> None:
        """Follows, and waits for a target that does not answer: an outage is no failure of this process."""
        failures = 0
        while not self.stopping.is_set():
            try:
                self.busy_since = progress.now()
                self.follower.begin()
                self.state, self.away, failures = "running", "", 0
                self._steps()
            except Stopped:  # the next one goes on with the version that it was at
                self.follower.sink.close()
                self.state = "stopping"
                return
            except (BrokerError, SinkAway) as err:
                self.state, self.away, self.busy_since = "running", str(err), None
                failures += 1
                pause = _PAUSES.after(failures)
                _log.warning(f"{err}; it is asked again in {pause:g} s")
                with suppress(LakehouseError):
                    self.follower.sink.close()
                self.stopping.wait(max(pause, getattr(err, "after", 0.0)))
                follower = self.follower
                self.follower = Follower(
                    follower.lakehouse, follower.table, follower.target, follower.going_on
                )
        self.state = "stopping"
        if self.refusal is None and not self.away:
            self.follower.end()

    def _waits(self) -> str:
        """Returns a remark on a target that has not answered for long; empty if it has. The follower itself waits for it."""
        since, position = self.busy_since, self.follower.position
        if since is None or datetime.now(UTC) - parse_instant(since, "busy_since") < _SLOW:
            return ""
        at = f"after version {position.version}" if position else "before its first version"
        return (
            f"target={self.follower.target.name}: it must answer, and has not since {since} ({at}); look what it waits for; "
            f"the follower is replaced after {self.settings.batch_within}"
        )

    def _steps(self) -> None:
        while not self.stopping.is_set():
            self.busy_since = progress.now()
            step = self.follower.step()
            self.busy_since = None
            if step is None:
                self.stopping.wait(_LOOK)
                continue
            self.sent += step.sent
            self.ignored += step.ignored

    def _going_on(self) -> None:
        self.busy_since = progress.now()
        if self.stopping.is_set():
            raise Stopped

    def _beat(self, ended: threading.Event) -> None:
        """Renews the status, and stops once the job is to be stopped: the wish may come from another host."""
        while not ended.wait(_HEARTBEAT):
            try:
                self.say()
                shorten_log(self.settings, self.name)
                self.process.obey()
            except (JobError, OSError) as err:  # another has taken over; the disk is full
                self.refusal = err
                self.stopping.set()
                return


def main(arguments: list[str] | None = None) -> int:
    parser = process.arguments_of(
        "streaming_jobs.exporters.follower", "Publishes a table to a target.", "target"
    )
    args = parser.parse_args(arguments)
    name = args.target.removeprefix(follower_of(""))

    def prepared(settings: Settings) -> tuple[Settings, str, Callable[[Lease], Job]]:
        lakehouse = Lakehouse(settings, catalog.load(settings))
        lakehouse.catalog.target(name)  # an unknown one is refused before it takes a lease
        return settings, follower_of(name), partial(Job, lakehouse, name)

    return process.run(_log, args.foreground, prepared)


if __name__ == "__main__":
    process.leave(main)
