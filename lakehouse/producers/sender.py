"""Sends records to Kafka, none before its instant, and those of the past as fast as the broker accepts them."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import confluent_kafka as kafka

from lakehouse.errors import BrokerError, LakehouseError
from lakehouse.producers.workload import DUPLICATE, LATE, MALFORMED, Record
from lakehouse.stopping import Stop

_BATCH = 1_000  # records between two looks at the clock, the failures and the wish to stop
_NAP = 0.005  # seconds; the least wait, so that a fast stream goes out in bursts instead of waking for each record


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts of a run. `sent` and `bytes` count every record, also bad, late and repeated ones."""

    topic: str  # those that records went to, with commas
    sent: int
    late: int
    duplicates: int
    malformed: int
    bytes: int  # of keys and values, before compression
    seconds: float
    first_event: datetime | None  # the least event time of the well-formed records
    last_event: datetime | None


def send(
    records: Iterable[Record],
    topic: str,
    client: Mapping[str, str | int | float | bool],
    stop: Stop | None = None,
    progress: Callable[[int], None] | None = None,
) -> Summary:
    """Sends `records`, which are in the order of their instants, until they end or `stop` is set.

    A record goes to its own topic if it names one, else to `topic`. One whose instant has passed goes out at once,
    so history is sent at full speed, and a slow producer catches up. Before it returns or raises, the broker has
    acknowledged or refused all that was read from `records`, and an error says how many were acknowledged. Raises
    BrokerError as soon as a record could not be delivered.
    """
    failures: Counter[str] = Counter()
    producer = kafka.Producer(_options(client, lambda error, _: failures.update([str(error)])))
    tally = _Tally()
    began = time.monotonic()
    try:
        for batch in _due(records, stop or Stop()):
            tally.add(batch)
            _queue(producer, topic, batch, tally)
            if progress is not None:
                progress(tally.sent)
            if failures:
                break
    except BaseException as error:
        producer.flush()
        acknowledged = f"acknowledged by the broker before that: {_acknowledged(tally, failures)}"
        if isinstance(error, LakehouseError):
            raise type(error)(f"{error}; {acknowledged}") from error
        error.add_note(acknowledged)
        raise
    producer.flush()
    if failures:
        reason = failures.most_common(1)[0][0]
        may_not = "AUTHORIZATION_FAILED" in reason
        remedy = "grant the user WRITE on the topic" if may_not else "see that the broker runs"
        raise BrokerError(
            f"delivery to {topic} (lost={failures.total()} of {tally.queued}): every record must arrive; "
            f"{reason}; {remedy}, then send again; acknowledged by the broker: {_acknowledged(tally, failures)}"
        )
    return tally.summary(topic, time.monotonic() - began)


def _acknowledged(tally: "_Tally", failures: Counter[str]) -> str:
    """Returns the number of records at the broker, after a flush, as text."""
    count = tally.queued - failures.total()
    return f"{count:,} record{'' if count == 1 else 's'}"


def _options(
    client: Mapping[str, str | int | float | bool], failed: Callable[[object, object], None]
) -> dict[str, object]:
    return {
        "enable.idempotence": True,
        "compression.type": "lz4",
        "linger.ms": 50,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 262_144,
        "message.max.bytes": 8_000_000,  # of a record before compression: bad input of 5 MB is to reach the broker
        "message.timeout.ms": 60_000,  # a broker that is gone is an error, not an endless wait
        "log_level": 3,  # errors; a broker just started makes idempotent producers warn and retry
        "delivery.report.only.error": True,  # a call back into Python for every record would cost more than sending it
        **client,
        "on_delivery": failed,
    }


def _due(records: Iterable[Record], stop: Stop) -> Iterator[list[Record]]:
    """Yields `records` in batches, each as soon as all of it is due; also those before a record that raises."""
    batch: list[Record] = []
    now = _wait(0, stop)
    try:
        for record in records:
            if record.time_ms > now or len(batch) == _BATCH:
                yield batch
                batch = []
                now = _wait(record.time_ms, stop)
                if stop.is_set():
                    return
            batch.append(record)
    except (Exception, KeyboardInterrupt):
        yield batch
        raise
    yield batch


def _wait(until_ms: int, stop: Stop) -> int:
    """Returns the present in ms, once `until_ms` has come or `stop` is set."""
    while (ahead := until_ms / 1000 - time.time()) > 0 and not stop.is_set():
        stop.wait(max(ahead, _NAP))
    return int(time.time() * 1000)


def _queue(producer: kafka.Producer, topic: str, batch: list[Record], tally: "_Tally") -> None:
    for key, value, partition, time_ms, _, _, own in batch:
        while True:
            try:
                producer.produce(own or topic, value, key, partition, timestamp=time_ms)
                tally.queued += 1
                break
            except BufferError:  # the queue is full: the broker sets the pace
                producer.poll(0.1)
            except kafka.KafkaException as error:
                raise BrokerError(
                    f"delivery to {own or topic} (time={time_ms}): the client took no more; {error}"
                ) from error
    producer.poll(0)


@dataclass(slots=True)
class _Tally:
    sent: int = 0
    queued: int = 0  # of these, what the client has
    bytes: int = 0
    topics: set[str] = field(default_factory=set)  # of records that name their own, else ""
    kinds: Counter[str] = field(default_factory=Counter)
    first_ms: int | None = None
    last_ms: int | None = None

    def add(self, batch: list[Record]) -> None:
        self.sent += len(batch)
        self.bytes += sum(len(record.value or b"") + len(record.key or b"") for record in batch)
        self.topics.update(record.topic for record in batch)
        self.kinds.update([record.kind for record in batch])
        if times := [record.event_ms for record in batch if record.event_ms is not None]:
            first, last = min(times), max(times)
            self.first_ms = first if self.first_ms is None else min(self.first_ms, first)
            self.last_ms = last if self.last_ms is None else max(self.last_ms, last)

    def summary(self, topic: str, seconds: float) -> Summary:
        late, duplicates, malformed = (self.kinds[kind] for kind in (LATE, DUPLICATE, MALFORMED))
        first, last = _instant(self.first_ms), _instant(self.last_ms)
        topics = ", ".join(sorted({name or topic for name in self.topics or {""}}))
        return Summary(
            topics, self.sent, late, duplicates, malformed, self.bytes, seconds, first, last
        )


def _instant(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
