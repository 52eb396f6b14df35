"""How many cores a streaming job keeps busy: ten tables at so many events a second, then with none.

    python -m benchmarks.busy [--rate 200] [--seconds 120] [--warm-up 120]

The real job, with its own supervision, on a real broker; CPU seconds of all its processes (Python and JVM) by the clock. Exit
code 1 if a row is missing in the end: then the numbers are void.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Producer

from benchmarks import check, latency, ten_tables, topic
from benchmarks.measure import BenchmarkError, Tree
from lakehouse.declare import catalog
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.journal import Journal

TOPIC = "ten-payments"


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
            latency.await_rows(catalog.table_path(settings, known.table("payments")), sent + more)
            time.sleep(20)  # what was sent is through all tables
            idle = _idle(tree, seconds / 2)
        rows = check.rows(catalog.table_path(settings, known.table("valid_payments")))
        if rows != sent + more:
            raise BenchmarkError(f"valid_payments: {rows:,} rows of {sent + more:,} sent; the run is void")
    return {"cores busy": busy, "micro-batches a second": batches, "CPU seconds each": busy / batches, "cores busy, idle": idle}


def _send(producer: Producer, rate: int, seconds: float, first: int) -> int:
    """Sends for so long; how many."""
    began, count = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        for number in range(first + count, first + int(passed * rate)):
            at = datetime.now(UTC).isoformat()
            row = {"id": number, "account": f"a{number % 50}", "at": at, "cents": number * 37 % 100_000}
            producer.produce(TOPIC, json.dumps(row).encode(), key=row["account"].encode())
            count += 1
        producer.poll(0)
        time.sleep(0.05)
    producer.flush(30)
    return count


def _idle(tree: Tree, seconds: float) -> float:
    before = tree.cpu()
    time.sleep(seconds)
    return (tree.cpu() - before) / seconds


def _lines(settings: Settings) -> int:
    """Micro-batches of all tables so far."""
    return sum(1 for _ in _journals(settings))


def _journals(settings: Settings) -> Iterator[object]:
    for table in catalog.load(settings):
        yield from Journal(settings, table).live()


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.busy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, default=200, help="events a second")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--warm-up", type=float, default=120)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakehouse-busy-") as work:
        settings = replace(
            from_environment(), root=Path(work).resolve(), kafka={}, bootstrap_servers="", tables=(ten_tables.__name__,)
        )
        try:
            found = measured(settings, given.rate, given.warm_up, given.seconds)
        except BenchmarkError as err:
            print(f"void: {err}", file=sys.stderr)
            return 1
    print(f"ten tables at {given.rate} events/s, {given.seconds:g} s after {given.warm_up:g} s")
    for name, value in found.items():
        print(f"{name}: {value:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
