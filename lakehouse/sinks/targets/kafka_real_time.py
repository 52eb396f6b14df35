"""The topic beside a target's own that has rows before their commit, each under the record that it is made of."""

from typing import TYPE_CHECKING

from lakehouse.errors import SinkAway, SinkError
from lakehouse.settings import Settings
from lakehouse.sinks.targets.kafka import CHANGE, TABLE, KafkaTopic

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_ANSWER = 60.0  # seconds for the broker to take what is still in the queue
Record = tuple[str, int, int]
"""The topic, partition and offset of a record."""


class RealTimeTopic:
    """Sends messages at least once: an idempotent producer keeps their order, and none waits for others."""

    def __init__(self, settings: Settings, target: KafkaTopic, table: str) -> None:
        from confluent_kafka import Producer

        from lakehouse.runtime.kafka_broker import ensure_topics
        from lakehouse.runtime.kafka_options import client_config

        self._name, self._table = target.real_time, table
        self._error: KafkaError | None = None
        ensure_topics(settings, {self._name: target.partitions})
        own = {"enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        self._producer = Producer(client_config(settings) | own)

    def send(self, record: Record, number: int, value: str | None, partition: int) -> None:
        """Sends the row of that number of a record; None retracts it."""
        key = "-".join(map(str, (*record, number)))
        headers: dict[str, str | bytes | None] = {
            TABLE: self._table,
            CHANGE: "insert" if value is not None else "delete",
        }
        while True:
            try:
                self._producer.produce(
                    self._name, value, key, partition, headers=headers, on_delivery=self._delivered
                )
                return
            except BufferError:  # the queue is full: the broker sets the pace
                self._producer.poll(0.1)
                self.check()

    def check(self) -> None:
        """Raises SinkAway if the broker did not take a message."""
        self._producer.poll(0)
        if self._error is not None:
            raise SinkAway(
                f"topic={self._name}: the broker must take each message and did not ({self._error.str()}); they are sent again"
            )

    def flush(self) -> None:
        """Returns once the broker has all messages. Raises SinkAway if it does not take one."""
        left = self._producer.flush(_ANSWER)
        self.check()
        if left:
            raise SinkAway(
                f"topic={self._name}: the broker must take each message within {_ANSWER:.0f} s, and {left} are left; they are "
                "sent again"
            )

    def record_of(self, key: bytes | None) -> tuple[Record, int]:
        """Returns the record that a message is made of, and the number of its row. Raises SinkError for another's message."""
        try:
            topic, partition, offset, number = (key or b"").decode().rsplit("-", 3)
            return (topic, int(partition), int(offset)), int(number)
        except ValueError as err:
            raise SinkError(
                f"topic={self._name}, key={key!r}: another program wrote the message, and the topic is the table's alone; "
                "have that program write elsewhere, and delete the topic"
            ) from err

    def close(self) -> None:
        self._producer.flush(_ANSWER)

    def _delivered(self, error: "KafkaError | None", _: object) -> None:
        self._error = error or self._error
