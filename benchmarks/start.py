"""Time to start: from `lakehouse stream start` of a job to its first commit, and from `lakehouse
demo` to results and to all of it.

Each on a machine that is set up, with nothing on disk.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

from benchmarks import topic
from benchmarks.commands import awaited
from lakehouse.declare import catalog
from lakehouse.examples.ads.producer import PRODUCER
from lakehouse.producers.sender import send
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.log.commit_log import CommitLog
from streaming_jobs.progress import AT_WORK
from streaming_jobs.supervision import supervisor

_LIMIT = 600.0  # seconds until the last of it
_MESSAGES = 10_000


@dataclass(frozen=True, slots=True)
class Started:
    """Seconds, of each round: from the start of a job to its first commit; from the demo's to a gold row, and to all of it."""

    job: tuple[float, ...]
    gold: tuple[float, ...]
    demo: tuple[float, ...]


def run(settings: Settings, rounds: int) -> Started:
    """Starts a job, then the demo, that often. Raises BenchmarkError if something does not come up."""
    roots = (replace(settings, root=settings.root / str(n)) for n in count())
    jobs = [_job(next(roots)) for _ in range(rounds)]
    demos = [_demo(next(roots)) for _ in range(rounds)]
    return Started(tuple(jobs), *(tuple(each) for each in zip(*demos, strict=True)))


def _job(settings: Settings) -> float:
    with topic.brokers(settings) as servers:
        settings = replace(
            settings, bootstrap_servers=servers, tables=("lakehouse.examples.ads.tables",)
        )
        kafka_broker.ensure_topics(
            settings, {PRODUCER.topic: PRODUCER.workload.partitions}, topic.TOPIC
        )
        now = int(time.time() * 1000)
        records = PRODUCER.records(
            PRODUCER.workload, now - _MESSAGES * 1000 // PRODUCER.workload.rate, now
        )
        send(records, PRODUCER.topic, client_config(settings))
        began = time.monotonic()
        try:
            supervisor.start(settings, "ads", wait=_LIMIT)
            awaited(lambda: _rows(settings, "ad_events"), "start: a job's first commit", _LIMIT)
            return time.monotonic() - began
        finally:
            supervisor.stop(settings, "ads")


def _demo(settings: Settings) -> tuple[float, float]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gold = [t.name for t in catalog.load(settings) if t.layer == "gold"]
    command = [sys.executable, "-m", "lakehouse", "demo", "--port", str(port)]
    began = time.monotonic()
    with subprocess.Popen(
        command, env=os.environ | to_environment(settings), stdout=subprocess.DEVNULL
    ) as process:
        try:
            looks = {
                "a gold row": lambda: any(_rows(settings, name) for name in gold),
                "all of it": lambda: _all_up(settings, port),
            }
            seen: dict[str, float] = {}

            def both() -> bool:  # either may come first
                for what, look in looks.items():
                    if what not in seen and look():
                        seen[what] = time.monotonic() - began
                return len(seen) == len(looks)

            awaited(both, "start: of the demo, a gold row, and its jobs and UI", _LIMIT)
            return tuple(seen[what] for what in looks)
        finally:
            process.terminate()


def _rows(settings: Settings, table: str) -> bool:
    return any(
        commit.written
        for commit in CommitLog(settings, catalog.load(settings).table(table)).by_stream()
    )


def _all_up(settings: Settings, port: int) -> bool:
    jobs = (
        supervisor.status(settings, pipeline) for pipeline in catalog.load(settings).pipelines()
    )
    if not all(job is not None and job.state in AT_WORK for job in jobs):
        return False
    with (
        suppress(OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5),
    ):
        return True
    return False
