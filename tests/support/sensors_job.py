"""The job of the sensors: what is sent to it, how it is waited for, and what its tables must hold in the end."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from pyspark.sql import functions as F

from lakehouse.declare import catalog
from lakehouse.examples.sensors import producer as sensors
from lakehouse.producers.registry import TOPIC
from lakehouse.producers.sender import send
from lakehouse.producers.workload import Workload
from lakehouse.ranges import EPOCH
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.session import Session

BEGIN = 1_767_225_600_000  # 2026-01-01T00:00:00Z
MINUTE = 60_000
# in order within a partition and disorder below the delay: nothing is late, so the oracle knows every window
WORKLOAD = Workload(
    seed=7, rate=50, disorder_ms=2_000, late_share=0, malformed_share=0.01, partitions=3
)


def produce(settings: Settings, start_minute: int, end_minute: int) -> int:
    records = sensors.records(WORKLOAD, BEGIN + start_minute * MINUTE, BEGIN + end_minute * MINUTE)
    kafka_broker.ensure_topics(settings, {"sensor-readings": WORKLOAD.partitions}, TOPIC)
    return send(records, "sensor-readings", client_config(settings)).sent


def go_on(settings: Settings, start_minute: int, end_minute: int) -> int:
    """As `produce`, the first second alone: of partitions silent for a while all speak again before one is far ahead.

    Else the micro-batch that sees one of them only leaves the others out of the watermark, and their next rows are late.
    """
    records = sensors.records(WORKLOAD, BEGIN + start_minute * MINUTE, BEGIN + end_minute * MINUTE)
    before = arrived(settings, "sensor_readings")
    first = send(islice(records, WORKLOAD.rate), "sensor-readings", client_config(settings)).sent
    awaited(lambda: arrived(settings, "sensor_readings") == before + first, "the first second", 240)
    return first + send(records, "sensor-readings", client_config(settings)).sent


def awaited(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def arrived(settings: Settings, table: str) -> int:
    return sum(
        c.arrived for c in CommitLog(settings, catalog.load(settings).table(table)).by_stream()
    )


def every_offset_once(session: Session, sent: int) -> None:
    record = session.catalog.table("sensor_readings")
    rows = (
        session.read(record)
        .select("_arrival.*")
        .union(session.read(record, side="quarantine").select("_arrival.*"))
    )
    found = rows.agg(
        F.count("*").alias("n"), F.count_distinct("partition", "offset").alias("distinct")
    ).head()
    assert (found.n, found.distinct) == (sent, sent)


def the_oracle_agrees(session: Session, lot: int = 10) -> None:
    """Each window behind the frontier holds what was sent, in three lots of so many minutes."""
    averages = session.catalog.table("sensor_averages")
    frontier = next(CommitLog(session.settings, averages).by_stream()).frontier
    rows = (
        session.read(averages)
        .select("sensor_id", F.unix_millis("window.start").alias("start"), "readings")
        .collect()
    )
    live = {(r.sensor_id, r.start): r.readings for r in rows}
    closed = (frontier - EPOCH).total_seconds() * 1000
    wanted = {key: n for key, n in readings_sent(lot).items() if key[1] + 5_000 <= closed}
    assert len(wanted) > 1_000 and live == wanted


def readings_sent(lot: int) -> Counter:
    """(sensor, start of window in ms) -> readings, of all three lots: a window may hold readings of two of them."""
    total: Counter = Counter()
    for start in range(0, 3 * lot, lot):
        expected = sensors.expected_readings(
            WORKLOAD, BEGIN + start * MINUTE, BEGIN + (start + lot) * MINUTE
        )
        total.update({key: found.readings for key, found in expected.items()})
    return total


@contextmanager
def supervised(settings: Settings, pipeline: str) -> Iterator[None]:
    """`lakehouse stream supervise` beside."""
    command = [sys.executable, "-m", "lakehouse", "stream", "supervise", pipeline, "--every", "0.5"]
    with subprocess.Popen(
        command, env=os.environ | to_environment(settings), start_new_session=True
    ) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0
