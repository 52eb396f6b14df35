"""Live latency: from a window's end plus the declared delay to the instant when its rows can be read.

The real job and the real producer at 5,000 events a second. A row can be read when the Delta commit that has it is in
the table's log; the time of that file is the instant.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from urllib.parse import unquote

import psutil
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks import check, measure, plain, topic
from benchmarks.check import Written
from benchmarks.measure import BenchmarkError, Tree
from examples.visits import producer as producer_of_visits
from lakehouse.declare import catalog
from lakehouse.examples.ads import producer as ads
from lakehouse.examples.ads.producer import WINDOW_MS
from lakehouse.producers.sender import send
from lakehouse.producers.workload import Producer, Workload
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log import commit_log
from streaming_jobs.supervision import supervisor

RATE, VISITS_RATE = 5_000, 1_000
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
    """The pipeline `ads` as `lakehouse stream start ads` runs it, without early results, which the script does not have."""
    bronze = table_path(settings, catalog.load(settings).table("ad_events"))
    return _measured(
        "ours", our_job, check.ours, replace(settings, early_results=False), seconds, bronze
    )


def by_hand(settings: Settings, seconds: int) -> Latency:
    """The hand-written script with the same trigger."""
    return _measured(
        "hand-written", _script, check.by_hand, settings, seconds, plain.bronze(settings.root)
    )


def visits(settings: Settings, seconds: int) -> Latency:
    """Visitors of the last five minutes per country, every minute, from access-log lines; no hand-written one beside it."""
    settings = replace(settings, tables=("examples.visits.tables",))
    workload = replace(
        producer_of_visits.PRODUCER.workload, rate=VISITS_RATE, late_share=0.0, malformed_share=0.0
    )
    known = catalog.load(settings)
    gold = table_path(settings, known.table("visitors_by_country"))
    record = table_path(settings, known.table("requests"))
    start_ms, end_ms, cpu = _fed(
        lambda s: our_job(s, "visits"),
        settings,
        producer_of_visits.PRODUCER,
        workload,
        seconds,
        record,
    )
    ahead = commit_log.frontier(settings, known.table("visitors_by_country"))
    _check_visitors(gold, ahead, producer_of_visits.expected_visitors(workload, start_ms, end_ms))
    warm_ms = start_ms + min(WARM_UP_MS, seconds * 500)
    delay = known.table("requests").delay.total_seconds()
    return Latency("visits", tuple(_delays(gold, 300_000, delay, warm_ms)), cpu)


def _check_visitors(
    gold: Path, ahead: datetime | None, expected: Mapping[tuple[str, int], tuple[int, int]]
) -> None:
    rows = (
        DeltaTable(str(gold))
        .to_pyarrow_table(columns=["window", "country", "visits", "visitors"])
        .to_pylist()
    )
    found = {(r["country"], _ms(r["window"]["start"])): (r["visits"], r["visitors"]) for r in rows}
    closed = {k: n for k, n in expected.items() if ahead and k[1] + 300_000 <= _ms(ahead)}
    if not closed or found != closed or len(found) < len(rows):
        raise BenchmarkError(
            f"visits: {len(found)} windows of {len(rows)} rows for {len(closed)} wanted, or other counts; void"
        )


def _ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)


@contextmanager
def our_job(settings: Settings, pipeline: str = "ads") -> Iterator[Tree]:
    job = supervisor.start(settings, pipeline, wait=_START)
    tree = Tree(psutil.Process(job.pid))
    tree.cpu()
    try:
        yield tree
    finally:
        supervisor.stop(settings, pipeline, timeout=_STOP)
        tree.end(_STOP)


@contextmanager
def _script(settings: Settings) -> Iterator[Tree]:
    command = [sys.executable, "-m", "benchmarks.handwritten", "--live"]
    with measure.started(command, to_environment(settings), settings.root / "run.log") as tree:
        deadline = time.monotonic() + _START
        while not (settings.root / plain.READY).exists():
            if tree.root.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(
                    f"hand-written: it did not start; see {settings.root / 'run.log'}"
                )
            time.sleep(0.1)
        yield tree
        tree.root.terminate()
        tree.end(_STOP)


def _measured(
    name: str,
    job: Callable,
    written: Callable[[Settings], Written],
    settings: Settings,
    seconds: int,
    bronze: Path,
) -> Latency:
    workload = replace(ads.PRODUCER.workload, rate=RATE, late_share=0.0)
    start_ms, end_ms, cpu = _fed(job, settings, ads.PRODUCER, workload, seconds, bronze)
    result = written(settings)
    expected = ads.expected_views(workload, start_ms, end_ms)
    check.check(name, result, seconds * RATE, expected, end_ms - WINDOW_MS)
    warm_ms = start_ms + min(WARM_UP_MS, seconds * 500)
    delay = catalog.load(settings).table("ad_events").delay.total_seconds()
    return Latency(name, tuple(_delays(result.gold, WINDOW_MS, delay, warm_ms)), cpu)


def _fed(
    job: Callable,
    settings: Settings,
    sent: Producer,
    workload: Workload,
    seconds: int,
    bronze: Path,
) -> tuple[int, int, float]:
    """Runs the job and sends to it for so long: from when to when, in ms, and the cores that it kept busy.

    The job ends when all that was sent is in the table at `bronze`.
    """
    with topic.brokers(settings) as servers:
        settings = replace(settings, bootstrap_servers=servers)
        kafka_broker.ensure_topics(settings, {sent.topic: workload.partitions}, topic.TOPIC)
        with job(settings) as tree:
            start_ms, cpu = int(time.time() * 1000), tree.cpu()
            end_ms = start_ms + seconds * 1000
            summary = send(
                sent.records(workload, start_ms, end_ms), sent.topic, client_config(settings)
            )
            cpu = (tree.cpu() - cpu) / seconds
            await_rows(bronze, summary.sent)
    return start_ms, end_ms, cpu


def await_rows(bronze: Path, rows: int, limit: float = _START) -> None:
    """Until the table holds so many; for a job that is told to end reads its topic no further."""
    deadline = time.monotonic() + limit
    while (found := check.rows(bronze)) < rows:
        if time.monotonic() > deadline:
            raise BenchmarkError(
                f"{bronze.name}: {found:,} rows {limit:.0f} s after {rows:,} were sent; the run is void"
            )
        time.sleep(0.2)


def _delays(gold: Path, window_ms: int, delay: float, warm_ms: int) -> Iterator[float]:
    for start, at in sorted(readable(gold).items()):
        if start + window_ms >= warm_ms:
            yield at - (start + window_ms) / 1000 - delay


def readable(gold: Path) -> dict[int, float]:
    """Start of the window in ms -> when the last of its rows could be read, in seconds since the epoch."""
    found: dict[int, float] = {}
    for commit in sorted(gold.glob("_delta_log/*.json")):
        for line in commit.read_text().splitlines():
            if added := json.loads(line).get("add"):
                windows = pq.read_table(
                    gold / unquote(added["path"]), columns=["window"], partitioning=None
                )
                starts = {int(w["start"].timestamp() * 1000) for w in windows["window"].to_pylist()}
                found |= dict.fromkeys(starts, commit.stat().st_mtime)
    return found
