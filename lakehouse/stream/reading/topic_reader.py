"""Messages of topics as the broker hands them out, held until a step takes them.

Offsets are never committed to the broker: a table's own commits hold its position.
"""

import time
from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lakehouse.runtime import kafka_client
from lakehouse.settings import Settings
from lakehouse.stream.reading.offsets import Offsets
from lakehouse.stream.reading.records import HELD, OF_HEADERS

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_BYTES = 32 << 20  # of messages that are held: with more, nothing is fetched until some are taken
_AT_ONCE = 10_000
Place = tuple[str, int]  # topic and partition


class TopicReader:
    """A consumer that reads on from the offsets that `place` sets, and holds what comes until `taken` returns it."""

    def __init__(
        self, settings: Settings, table: str, most: int, with_headers: Container[str] = ()
    ) -> None:
        self.most = most  # messages to hold
        self._with_headers = with_headers  # topics
        self.error = ""  # the broker's last error, until a message comes or the broker is asked
        self._settings, self._name = settings, f"lakehouse-{table}"
        self._consumer: Consumer | None = None  # once it is placed
        self._held: dict[Place, deque] = {}
        # the offset after the last message that came, or after offsets without a message
        self._reached: dict[Place, int] = {}
        self._rows = self._bytes = 0

    @property
    def is_placed(self) -> bool:
        return bool(self._reached)

    @property
    def has_news(self) -> bool:
        """Returns True if there is a reason to ask the broker how far its topics are: a message, or an error."""
        return bool(self._rows or self.error)

    @property
    def reached(self) -> Offsets:
        """Returns the offset after what has come, of each partition."""
        reached: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in self._reached.items():
            reached.setdefault(topic, {})[str(partition)] = offset
        return reached

    @property
    def is_full(self) -> bool:
        return self._rows >= self.most or self._bytes >= _BYTES

    def place(self, offsets: Offsets) -> None:
        """Reads from these offsets on, and drops what it held."""
        from confluent_kafka import TopicPartition

        self._reached = {
            (topic, int(p)): offset
            for topic, partitions in offsets.items()
            for p, offset in partitions.items()
        }
        self._held = {place: deque() for place in self._reached}
        self._rows = self._bytes = 0
        if self._consumer is None:
            own = {
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "queued.max.messages.kbytes": _BYTES >> 10,
            }
            self._consumer = kafka_client.consumer(self._settings, self._name, own)
        self._consumer.assign(
            [TopicPartition(*place, offset) for place, offset in self._reached.items()]
        )

    def lift(self) -> None:
        """Drops what it held, and reads nothing until it is placed again."""
        if self._consumer is not None:
            self._consumer.unassign()
        self._held, self._reached, self._rows, self._bytes = {}, {}, 0, 0

    def wait(self, seconds: float) -> None:
        """Returns with the first message, or after so many seconds."""
        if self._consumer is None or self.is_full:
            time.sleep(seconds)
        elif (message := self._consumer.poll(seconds)) is not None:
            self._take_in([message])

    def gather(self, seconds: float) -> None:
        """Takes in what comes within so many seconds, once it is placed."""
        assert self._consumer is not None, "it is placed"
        deadline = time.monotonic() + seconds
        while not self.is_full:
            left = max(deadline - time.monotonic(), 0)
            messages = self._consumer.consume(min(self.most - self._rows, _AT_ONCE), left)
            self._take_in(messages)
            if not messages or time.monotonic() >= deadline:
                break

    def taken(self, ends: Offsets) -> Mapping[str, pa.Table]:
        """Returns the messages before these offsets, by topic, and holds them no longer."""
        by_topic: dict[str, list] = {topic: [] for topic in ends}
        for topic, messages in by_topic.items():
            for partition, end in ends[topic].items():
                held = self._held[topic, int(partition)]
                while held and held[0].offset() < end:
                    messages.append(held.popleft())
            self._rows -= len(messages)
            self._bytes -= sum(map(_size, messages))
        return {t: _table(rows, t in self._with_headers) for t, rows in by_topic.items()}

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _take_in(self, messages: Sequence) -> None:
        from confluent_kafka import KafkaError

        for message in messages:
            place = message.topic(), message.partition()
            if (error := message.error()) is not None:
                if kafka_client.is_of_group(error):
                    continue
                if error.code() == KafkaError._PARTITION_EOF:
                    self._reached[place] = max(self._reached[place], message.offset())
                elif refused := kafka_client.denied(
                    error, f"topic={message.topic()}, reading it", "READ on the topic"
                ):
                    raise refused
                else:
                    self.error = error.str()
                continue
            self.error = ""
            self._held[place].append(message)
            self._reached[place] = message.offset() + 1
            self._rows += 1
            self._bytes += _size(message)


def _table(messages: Sequence, with_headers: bool) -> pa.Table:
    columns = [
        [m.key() for m in messages],
        [m.value() for m in messages],
        [m.partition() for m in messages],
        [m.offset() for m in messages],
        [m.timestamp()[1] for m in messages],
    ]
    schema = HELD
    if with_headers:
        schema = HELD.append(OF_HEADERS)
        columns.append([[*map(_header, m.headers() or ())] for m in messages])
    return pa.Table.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def _header(header: tuple[str, bytes | None]) -> dict[str, object]:
    return dict(zip(("key", "value"), header, strict=True))


def _size(message) -> int:
    return len(message.value() or b"") + len(message.key() or b"")
