"""Live latency: how long after a window's end plus the declared delay its rows can be read.

The real job with the real producer at 5,000 events a second; the instant of readability is when the Delta commit that
first has the window appeared in the table's log.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import unquote

import psutil
import pyarrow.parquet as pq

from benchmarks import check, measure, plain
from benchmarks.measure import BenchmarkError
from benchmarks.topic import TOPIC, brokers
from lakehouse import broker, catalog
from lakehouse.producers import ads, producer
from lakehouse.producers.ads import WINDOW_MS
from lakehouse.producers.workload import Workload
from lakehouse.settings import Settings, to_environment
from streaming_jobs import supervisor

RATE = 5_000
WARM_UP_S = 15.0
_TAIL_S = 5.0  # after the last event: the last windows stay open, the others get through


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from a window's end plus the delay to its rows being readable."""

    windows: int
    p50: float
    p95: float
    worst: float
    cpu_per_second: float
    each: tuple[float, ...]


def ours(settings: Settings, seconds: float) -> Latency:
    """The pipeline `ads` as `lakehouse start ads` runs it."""
    with brokers(settings) as servers:
        settings = replace(settings, bootstrap_servers=servers)
        _topic(settings)
        job = supervisor.start(settings, "ads", wait=120)
        tree = measure.Tree(psutil.Process(job.pid))
        try:
            start_ms, cpu = _produce(settings, seconds, tree)
        finally:
            supervisor.stop(settings, "ads", timeout=60)
            tree.end(20)
        return _latency("ours", settings, check.ours(settings), start_ms, seconds, cpu)


def by_hand(settings: Settings, seconds: float) -> Latency:
    """The plain script with the same triggers."""
    with brokers(settings) as servers:
        settings = replace(settings, bootstrap_servers=servers)
        _topic(settings)
        command = [sys.executable, "-m", "benchmarks.handwritten", "--live", str(seconds + WARM_UP_S + _TAIL_S)]
        with measure.started(command, to_environment(settings), settings.root / "run.log") as tree:
            # wait for session
            start_ms, cpu = _produce(settings, seconds, tree)
        return _latency("hand-written", settings, check.by_hand(settings), start_ms, seconds, cpu)
