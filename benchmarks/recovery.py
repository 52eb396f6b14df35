"""Time to recover: kill -9 of the job's process, until the record's next micro-batch is committed, under supervision.

A stream of 1,000 events a second goes on beside. Each kill counts as the first failure, for the pauses before later ones are
meant to grow.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from statistics import median
from threading import Event, Thread

from benchmarks import topic
from benchmarks.measure import BenchmarkError
from lakehouse.declare import catalog
from lakehouse.examples import producer
from lakehouse.producers.sender import send
from lakehouse.ranges import parse_instant
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.commit_log import CommitLog
from streaming_jobs import desired, supervisor

RATE = 1_000
_LIMIT = 120.0  # seconds for one recovery


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from each kill: until another process was started, until its queries ran, until a micro-batch was committed."""

    started: tuple[float, ...]
    running: tuple[float, ...]
    committed: tuple[float, ...]

    @property
    def p50(self) -> float:
        return median(self.committed)


def run(settings: Settings, kills: int) -> Recovery:
    """Kills the job of the ads that often. Raises BenchmarkError if it does not come back."""
    workload, sent = replace(producer("ads").workload, rate=RATE), producer("ads")
    with topic.brokers(settings) as servers:
        settings = replace(
            settings, bootstrap_servers=servers, tables=("lakehouse.examples.ads.tables",)
        )
        kafka_broker.ensure_topics(settings, {sent.topic: workload.partitions}, topic.TOPIC)
        supervisor.start(settings, "ads", wait=_LIMIT)
        try:
            records = sent.records(workload, int(time.time() * 1000), None)
            with (
                _sending(partial(send, records, sent.topic, client_config(settings))),
                _supervised(settings),
            ):
                found = [_recovered(settings) for _ in range(kills)]
        finally:
            supervisor.stop(settings, "ads")
    return Recovery(*(tuple(each) for each in zip(*found, strict=True)))


def _recovered(settings: Settings) -> tuple[float, float, float]:
    record = catalog.load(settings).table("ad_events")
    began = datetime.now(UTC)
    _await(lambda: _committed(settings, record, began), "a micro-batch before the kill")
    desired.wish(settings, "ads", "running", "benchmark")
    before = supervisor.status(settings, "ads")
    killed = datetime.now(UTC)
    os.kill(before.pid, signal.SIGKILL)
    committed = _await(lambda: _committed(settings, record, killed), "a micro-batch after the kill")
    event = next(
        e
        for e in desired.history(settings, "ads")
        if e.what in ("started", "restarted") and e.moment > killed
    )
    now = _await(lambda: _at_work(settings, before.pid), "the queries run")
    return tuple((at - killed).total_seconds() for at in (event.moment, now, committed))


def _at_work(settings: Settings, before: int) -> datetime | None:
    """When the first query of the new process began to run."""
    status = supervisor.status(settings, "ads")
    at = [parse_instant(q.since) for q in status.queries] if status.pid != before else []
    return min(at, default=None)


def _committed(settings: Settings, record, after: datetime) -> datetime | None:
    """The instant of the first live commit after that one."""
    newer = list(takewhile(lambda c: c.at > after, CommitLog(settings, record).by_stream()))
    return newer[-1].at if newer else None


def _await(look: Callable[[], datetime | None], what: str) -> datetime:
    deadline = time.monotonic() + _LIMIT
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"recovery: {what}: not within {_LIMIT:.0f} s")
        time.sleep(0.05)
    return found


@contextmanager
def _sending(to_topic: Callable[[Event], object]) -> Iterator[None]:
    stop = Event()
    thread = Thread(target=to_topic, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _supervised(settings: Settings) -> Iterator[None]:
    command = [sys.executable, "-m", "lakehouse", "stream", "supervise", "ads"]
    with subprocess.Popen(
        command, env=os.environ | to_environment(settings), stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
