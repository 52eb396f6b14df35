"""From a record to its alert: milliseconds from the send of a payment to the message that `latency="real-time"` sends for it.

    python -m benchmarks.real_time [--seconds 60] [--rate 200] [--kill]

The real job and broker; producer and reader are on the same machine. A tenth of the payments become alerts. In the end all of
them must have been sent, with their values, and none may be retracted. With `--kill` the job is killed by SIGKILL after three
quarters of the time and started again, and the latencies are those of the time before.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame

from benchmarks.latency import our_job
from benchmarks.measure import BenchmarkError
from lakehouse import ingest_table, kafka, kafka_topic, row_table
from lakehouse.runtime import jars, kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from streaming_jobs.supervision import supervisor

TOPIC, ALERTS = "measured-payments", "measured-alerts"
WARM_UP = 60.0  # seconds: a cold JVM compiles
_LIMIT = 120.0  # seconds for the last alert to come
payment_topic = kafka(TOPIC, schema="n BIGINT NOT NULL, at TIMESTAMP NOT NULL, cents BIGINT")


@ingest_table(layer="bronze", event_time="at", delay="1 second")
def payments(payment_topic: DataFrame) -> DataFrame:
    return payment_topic


@row_table(layer="gold", publish=[kafka_topic(ALERTS, key="n", latency="real-time")])
def alerts(payments: DataFrame) -> DataFrame:
    return payments.where("cents >= 90")


class Reader:
    """Notes when it sees each alert first."""

    def __init__(self, settings: Settings) -> None:
        self.seen: dict[int, float] = {}
        self.retracted: list[bytes] = []
        self.repeated = 0
        self._consumer = Consumer(
            client_config(settings) | {"group.id": "benchmark", "log_level": 0}
        )
        self._consumer.assign([TopicPartition(f"{ALERTS}.real-time", 0, 0)])
        self.ending = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while not self.ending.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error():
                continue
            now, value = time.monotonic(), message.value()
            if value is None:
                self.retracted.append(message.key())
                continue
            row = json.loads(value)
            if row["cents"] != row["n"] % 100:
                raise BenchmarkError(f"alert {row}: its values are not those that were sent; void")
            self.repeated += row["n"] in self.seen
            self.seen.setdefault(row["n"], now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--kill", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        base = from_environment(required=False)
        settings = replace(base, root=Path(root), tables=(__spec__.name,), bootstrap_servers="")
        kafka_broker.start(settings, jars.resolve(settings.jars))
        try:
            _measure(settings, chosen)
        finally:
            kafka_broker.stop(settings)


def _measure(settings: Settings, chosen: argparse.Namespace) -> None:
    kafka_broker.ensure_topics(settings, {TOPIC: 1, f"{ALERTS}.real-time": 1})
    pipeline = __spec__.name.rpartition(".")[2]
    with our_job(settings, pipeline) as job:
        reader, sent, cpu = Reader(settings), dict[int, float](), 0.0
        producer = Producer(client_config(settings) | {"linger.ms": 0, "log_level": 0})
        began = time.monotonic()
        total = int((WARM_UP + chosen.seconds) * chosen.rate)
        measured = int(WARM_UP * chosen.rate)
        for n in range(total):
            time.sleep(max(began + n / chosen.rate - time.monotonic(), 0))
            sent[n] = time.monotonic()
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            producer.produce(TOPIC, json.dumps({"n": n, "at": at, "cents": n % 100}))
            producer.poll(0)
            if n == measured:
                cpu = job.cpu()
            if chosen.kill and n == total * 3 // 4:
                os.kill(supervisor.status(settings, pipeline).pid, signal.SIGKILL)
                again = partial(supervisor.start, settings, pipeline, wait=_LIMIT)
                threading.Thread(target=again, daemon=True).start()
        cores = (job.cpu() - cpu) / chosen.seconds
        producer.flush(30)
        wanted = {n for n in sent if n % 100 >= 90}
        deadline = time.monotonic() + _LIMIT
        while reader.seen.keys() < wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        reader.ending.set()
        if reader.seen.keys() != wanted or reader.retracted:
            raise BenchmarkError(
                f"{len(reader.seen):,} alerts of {len(wanted):,}, {len(reader.retracted)} retracted; void"
            )
    until = total * 3 // 4 - chosen.rate if chosen.kill else total
    waits = [1000 * (reader.seen[n] - sent[n]) for n in sorted(wanted) if measured <= n < until]
    p50, p95, p99 = np.quantile(waits, [0.5, 0.95, 0.99])
    print(
        f"{len(waits)} alerts at {chosen.rate} payments a second, milliseconds from record to message:"
    )
    print(f"median {p50:.0f}, 95 % {p95:.0f}, 99 % {p99:.0f}, greatest {max(waits):.0f}")
    print(
        f"all {len(wanted):,} sent, {reader.repeated} more than once; {cores:.2f} cores busy; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as err:
        sys.exit(str(err))
