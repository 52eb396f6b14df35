"""How many cores streaming jobs keep busy: ten tables at so many events a second, then with none.

    python -m benchmarks.busy [--rate 200] [--seconds 120] [--warm-up 120]
    python -m benchmarks.busy --pipelines sensors ads --rate 5000    # example pipelines, at so many events a second each

The real job, with its own supervision, on a real broker; CPU seconds of all its processes (Python and JVM) by the clock. Exit
code 1 if a row is missing in the end: then the numbers are void.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event

from confluent_kafka import Producer

from benchmarks import check, latency, ten_tables, topic
from benchmarks.measure import BenchmarkError, Tree
from lakehouse.declare import catalog
from lakehouse.declare.table import Table
from lakehouse.producers.registry import producer_beside
from lakehouse.producers.sender import send
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.log.commit_log import CommitLog

TOPIC = "ten-payments"
PIPELINES = {
    "sensors": "lakehouse.examples.sensors.tables",
    "ads": "lakehouse.examples.ads.tables",
    "visits": "examples.visits.tables",
    "bank": "examples.bank.tables",
}


def measured(settings: Settings, rate: int, warm_up: float, seconds: float) -> dict[str, float]:
    with topic.brokers(settings) as servers:
        settings = replace(settings, bootstrap_servers=servers)
        kafka_broker.ensure_topics(settings, {TOPIC: 2}, topic.TOPIC)
        with latency.our_job(settings, ten_tables.PIPELINE) as tree:
            producer = Producer(client_config(settings) | {"linger.ms": 50})
            sent = _send(producer, rate, warm_up, 0)
            busy, batches = tree.cpu(), _lines(settings)
            more = _send(producer, rate, seconds, sent)
            busy, batches = (tree.cpu() - busy) / seconds, (_lines(settings) - batches) / seconds
            known = catalog.load(settings)
            latency.await_rows(table_path(settings, known.table("payments")), sent + more)
            time.sleep(20)  # what was sent is through all tables
            idle = _idle(tree, seconds / 2)
        rows = check.rows(table_path(settings, known.table("valid_payments")))
        if rows != sent + more:
            raise BenchmarkError(
                f"valid_payments: {rows:,} rows of {sent + more:,} sent; the run is void"
            )
    return {
        "cores busy": busy,
        "micro-batches a second": batches,
        "CPU seconds each": busy / batches,
        "cores busy, idle": idle,
    }


def example_jobs(
    settings: Settings, pipelines: Sequence[str], rate: int, warm_up: float, seconds: float
) -> dict[str, float]:
    """The jobs of example pipelines, side by side; each producer sends until the end."""
    sources = list(filter(None, map(producer_beside, settings.tables)))
    stop = Event()
    with topic.brokers(settings) as servers, ThreadPoolExecutor() as beside, ExitStack() as jobs:
        settings = replace(settings, bootstrap_servers=servers)
        loads = {source.topic: replace(source.workload, rate=rate) for source in sources}
        kafka_broker.ensure_topics(
            settings, {name: load.partitions for name, load in loads.items()}, topic.TOPIC
        )
        trees = [jobs.enter_context(latency.our_job(settings, name)) for name in pipelines]
        began = int(time.time() * 1000)
        sending = [
            beside.submit(
                send, s.records(loads[s.topic], began, None), s.topic, client_config(settings), stop
            )
            for s in sources
        ]
        try:
            time.sleep(warm_up)
            busy = [tree.cpu() for tree in trees]
            time.sleep(seconds)
            busy = [
                (tree.cpu() - before) / seconds for tree, before in zip(trees, busy, strict=True)
            ]
        finally:
            stop.set()
        known = catalog.load(settings)
        for name, sent in zip(pipelines, sending, strict=True):
            ingest = next(t for t in known if t.pipeline == name and t.kind.reads_sources)
            _await_all(settings, ingest, sent.result().sent)
    return {f"cores busy, {name}": value for name, value in zip(pipelines, busy, strict=True)} | {
        "cores busy": sum(busy)
    }


def _await_all(settings: Settings, ingest: Table, sent: int) -> None:
    """Until each message is a row of the table or of its quarantine. Raises BenchmarkError."""
    deadline = time.monotonic() + 120
    while (
        there := sum(check.rows(table_path(settings, ingest, side)) for side in ("", "quarantine"))
    ) < sent:
        if time.monotonic() > deadline:
            raise BenchmarkError(
                f"{ingest.name}: {there:,} rows of {sent:,} messages after 120 s; the run is void"
            )
        time.sleep(0.5)


def _send(producer: Producer, rate: int, seconds: float, first: int) -> int:
    """Sends for so long; how many."""
    began, count = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        for number in range(first + count, first + int(passed * rate)):
            at = datetime.now(UTC).isoformat()
            row = {
                "id": number,
                "account": f"a{number % 50}",
                "at": at,
                "cents": number * 37 % 100_000,
            }
            producer.produce(TOPIC, json.dumps(row).encode(), key=row["account"].encode())
            count += 1
        producer.poll(0)
        time.sleep(0.05)
    if left := producer.flush(30):
        raise BenchmarkError(
            f"{TOPIC}: the broker acknowledged {count - left:,} of {count:,} messages within 30 s; the run is void"
        )
    return count


def _idle(tree: Tree, seconds: float) -> float:
    before = tree.cpu()
    time.sleep(seconds)
    return (tree.cpu() - before) / seconds


def _lines(settings: Settings) -> int:
    """Micro-batches of all tables so far."""
    return sum(1 for _ in _commit_logs(settings))


def _commit_logs(settings: Settings) -> Iterator[object]:
    for table in catalog.load(settings):
        yield from CommitLog(settings, table).by_stream()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.busy", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rate", type=int, default=200, help="events a second")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--warm-up", type=float, default=120)
    parser.add_argument(
        "--pipelines",
        nargs="+",
        choices=PIPELINES,
        help="in place of the ten tables",
    )
    given = parser.parse_args()
    tables = [PIPELINES[name] for name in given.pipelines or ()] or [ten_tables.__name__]
    with tempfile.TemporaryDirectory(prefix="lakehouse-busy-") as work:
        settings = replace(
            from_environment(),
            root=Path(work).resolve(),
            kafka={},
            bootstrap_servers="",
            tables=tuple(tables),
        )
        try:
            measure = (
                partial(example_jobs, settings, given.pipelines)
                if given.pipelines
                else partial(measured, settings)
            )
            found = measure(given.rate, given.warm_up, given.seconds)
        except BenchmarkError as err:
            print(f"void: {err}", file=sys.stderr)
            return 1
    what = ", ".join(given.pipelines or ["ten tables"])
    print(f"{what} at {given.rate} events/s, {given.seconds:g} s after {given.warm_up:g} s")
    for name, value in found.items():
        print(f"{name}: {value:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
