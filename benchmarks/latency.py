"""Live latency: from a window's end plus the declared delay to the instant when its rows can be read.

The real job and the real producer at 5,000 events a second. A row can be read when the Delta commit that has it is in
the table's log; the time of that file is the instant.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from urllib.parse import unquote

import psutil
import pyarrow.parquet as pq

from benchmarks import check, measure, plain, topic
from benchmarks.check import Written
from benchmarks.measure import BenchmarkError, Tree
from lakehouse import broker, catalog
from lakehouse.kafka_options import client_config
from lakehouse.producers import ads, producer
from lakehouse.producers.ads import WINDOW_MS
from lakehouse.producers.sender import send
from lakehouse.settings import Settings, to_environment
from streaming_jobs import supervisor

RATE = 5_000
WARM_UP_MS = 120_000  # a cold JVM compiles for minutes; of a shorter run the first half
_START, _STOP = 120.0, 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of delay, one per window after the warm-up; CPU seconds that the job took per second of the stream."""

    name: str
    windows: tuple[float, ...]
    cpu: float

    @property
    def p50(self) -> float:
        return median(self.windows)

    @property
    def p95(self) -> float:
        return sorted(self.windows)[int(0.95 * (len(self.windows) - 1) + 0.5)]

    @property
    def worst(self) -> float:
        return max(self.windows)


def ours(settings: Settings, seconds: int) -> Latency:
    """The pipeline `ads` as `lakehouse start ads` runs it, without early results, which the script does not have."""
    return _measured("ours", _our_job, check.ours, replace(settings, early=False), seconds)


def by_hand(settings: Settings, seconds: int) -> Latency:
    """The hand-written script with the same trigger."""
    return _measured("hand-written", _script, check.by_hand, settings, seconds)


@contextmanager
def _our_job(settings: Settings) -> Iterator[Tree]:
    job = supervisor.start(settings, "ads", wait=_START)
    tree = Tree(psutil.Process(job.pid))
    tree.cpu()
    try:
        yield tree
    finally:
        supervisor.stop(settings, "ads", timeout=_STOP)
        tree.end(_STOP)


@contextmanager
def _script(settings: Settings) -> Iterator[Tree]:
    command = [sys.executable, "-m", "benchmarks.handwritten", "--live"]
    with measure.started(command, to_environment(settings), settings.root / "run.log") as tree:
        deadline = time.monotonic() + _START
        while not (settings.root / plain.READY).exists():
            if tree.root.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"hand-written: it did not start; see {settings.root / 'run.log'}")
            time.sleep(0.1)
        yield tree
        tree.root.terminate()
        tree.end(_STOP)


def _measured(
    name: str, job: Callable, written: Callable[[Settings], Written], settings: Settings, seconds: int
) -> Latency:
    workload = replace(producer("ads").workload, rate=RATE, late_share=0.0)
    with topic.brokers(settings) as servers:
        settings = replace(settings, bootstrap_servers=servers)
        broker.ensure_topics(settings, {producer("ads").topic: workload.partitions}, topic.TOPIC)
        with job(settings) as tree:
            start_ms, cpu = int(time.time() * 1000), tree.cpu()
            end_ms = start_ms + seconds * 1000
            send(ads.records(workload, start_ms, end_ms), producer("ads").topic, client_config(settings))
            cpu = (tree.cpu() - cpu) / seconds
    result = written(settings)
    expected = ads.expected_views(workload, start_ms, end_ms)
    check.check(name, result, seconds * RATE, expected, end_ms - WINDOW_MS)
    warm_ms = start_ms + min(WARM_UP_MS, seconds * 500)
    return Latency(name, tuple(_delays(settings, result.gold, warm_ms)), cpu)


def _delays(settings: Settings, gold: Path, warm_ms: int) -> Iterator[float]:
    delay = catalog.load(settings).table("ad_events").delay.total_seconds()
    for start, at in sorted(_readable(gold).items()):
        if start + WINDOW_MS >= warm_ms:
            yield at - (start + WINDOW_MS) / 1000 - delay


def _readable(gold: Path) -> dict[int, float]:
    """Start of the window in ms -> when the last of its rows could be read, in seconds since the epoch."""
    found: dict[int, float] = {}
    for commit in sorted(gold.glob("_delta_log/*.json")):
        for line in commit.read_text().splitlines():
            if added := json.loads(line).get("add"):
                windows = pq.read_table(gold / unquote(added["path"]), columns=["window"], partitioning=None)
                starts = {int(w["start"].timestamp() * 1000) for w in windows["window"].to_pylist()}
                found |= dict.fromkeys(starts, commit.stat().st_mtime)
    return found
