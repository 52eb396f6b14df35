"""The topic that every case reads, and the oracle: how many views each campaign has in each window."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event

from lakehouse.examples.ads import producer as ads
from lakehouse.producers.sender import Summary, send
from lakehouse.producers.workload import Record, Workload
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.jars import resolve
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings

# 2026-01-01T00:00:00Z: a full hour, so that whole hours can be replaced
START_MS = 1_767_225_600_000
HOUR_MS = 3_600_000
SPAN_S = 10_000  # of event time in the larger topic: two whole hours and the windows that close after them
# else Kafka deletes old records at once
TOPIC = {
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
}

Views = dict[tuple[str, int], int]  # (campaign, start of the window in ms) -> views


@dataclass(frozen=True, slots=True)
class Load:
    """`events` in a topic, and a few more: one whole micro-batch after the other, and the last one small.

    A watermark follows the batch before; so a small last batch lets nearly all windows close.
    """

    workload: Workload
    events: int
    batch: int

    @property
    def sent(self) -> int:
        return self.events + max(self.batch // 100, 20 * self.workload.rate)

    @property
    def end_ms(self) -> int:
        return START_MS + self.sent * 1000 // self.workload.rate

    @property
    def complete_ms(self) -> int:
        """Windows up to this instant must be closed by whoever read all of it; the delay is well within the second."""
        return START_MS + self.events * 1000 // self.workload.rate - 2_000

    def expected(self) -> Views:
        return ads.expected_views(self.workload, START_MS, self.end_ms)


def loads(events: int, batches: int, late_share: float = 0.0) -> tuple[Load, Load]:
    """Half the events and all of them, the latter in so many micro-batches; the same bytes as far as the first goes.

    Late is up to an hour.
    """
    rate = max(events // SPAN_S, 1)
    workload = replace(ads.PRODUCER.workload, rate=rate, late_share=late_share, late_by_ms=HOUR_MS)
    batch = max(events // batches, 1)
    return Load(workload, events // 2, batch), Load(workload, events, batch)


@contextmanager
def brokers(settings: Settings) -> Iterator[str]:
    """The address of an embedded broker of its own under `settings.root`, which ends with the block."""
    try:
        yield kafka_broker.start(settings, resolve(settings.jars)).bootstrap_servers
    finally:
        kafka_broker.stop(settings)


def fill(settings: Settings, load: Load) -> None:
    """Sends the load; `settings` has the address of the broker."""
    kafka_broker.ensure_topics(settings, {ads.PRODUCER.topic: load.workload.partitions}, TOPIC)
    records = ads.records(load.workload, START_MS, load.end_ms)
    summary = send(records, ads.PRODUCER.topic, client_config(settings))
    assert summary.sent == load.sent, (summary.sent, load.sent)


@contextmanager
def sending(
    settings: Settings, records: Iterable[Record], to_topic: str
) -> Iterator[Future[Summary]]:
    """Sends beside the block, until it ends; what was sent is known then."""
    stop = Event()
    with ThreadPoolExecutor(1) as beside:
        summary = beside.submit(send, records, to_topic, client_config(settings), stop)
        try:
            yield summary
        finally:
            stop.set()
