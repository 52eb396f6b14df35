"""Time to recover: kill -9 of the job's process, until the record's next micro-batch is committed, under supervision.

A stream of 1,000 events a second goes on beside. Each kill counts as the first failure, for the pauses before later ones are
meant to grow.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median

from benchmarks import topic
from benchmarks.commands import awaited, first_commit
from lakehouse.declare import catalog
from lakehouse.examples.ads.producer import PRODUCER
from lakehouse.ranges import parse_instant
from lakehouse.runtime import kafka_broker
from lakehouse.settings import Settings, to_environment
from streaming_jobs.supervision import desired, supervisor

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
    workload = replace(PRODUCER.workload, rate=RATE)
    with topic.brokers(settings) as servers:
        settings = replace(
            settings, bootstrap_servers=servers, tables=("lakehouse.examples.ads.tables",)
        )
        kafka_broker.ensure_topics(settings, {PRODUCER.topic: workload.partitions}, topic.TOPIC)
        supervisor.start(settings, "ads", wait=_LIMIT)
        try:
            records = PRODUCER.records(workload, int(time.time() * 1000), None)
            with topic.sending(settings, records, PRODUCER.topic), _supervised(settings):
                found = [_recovered(settings) for _ in range(kills)]
        finally:
            supervisor.stop(settings, "ads")
    return Recovery(*(tuple(each) for each in zip(*found, strict=True)))


def _recovered(settings: Settings) -> tuple[float, float, float]:
    record = catalog.load(settings).table("ad_events")
    began = datetime.now(UTC)
    awaited(
        lambda: first_commit(settings, record, began), "recovery: a commit before a kill", _LIMIT
    )
    desired.wish(settings, "ads", "running", "benchmark")
    before = supervisor.status(settings, "ads")
    killed = datetime.now(UTC)
    os.kill(before.pid, signal.SIGKILL)
    after = "recovery: a commit after a kill"
    committed = awaited(lambda: first_commit(settings, record, killed), after, _LIMIT)
    event = next(
        e
        for e in desired.history(settings, "ads")
        if e.what in ("started", "restarted") and e.moment > killed
    )
    now = awaited(lambda: _at_work(settings, before.pid), "recovery: running queries", _LIMIT)
    return tuple((at - killed).total_seconds() for at in (event.moment, now, committed))


def _at_work(settings: Settings, before: int) -> datetime | None:
    """When the first query of the new process began to run."""
    status = supervisor.status(settings, "ads")
    at = [parse_instant(q.since) for q in status.queries] if status.pid != before else []
    return min(at, default=None)


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
