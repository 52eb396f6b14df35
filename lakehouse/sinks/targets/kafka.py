"""Topics of Kafka as targets: each version of a table is one transaction, and its position is in it.

The position is a record of a compacted topic of its own, `<topic>.position`. A follower first claims the transactional
id, which ends the transaction of the former process and refuses it from then on. Then it reads the position.
"""

import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from lakehouse.declare.inputs.source_checks import one_of
from lakehouse.declare.targets import (
    Change,
    Corrections,
    Position,
    Row,
    RowChange,
    Sink,
    Target,
    columns_of,
)
from lakehouse.errors import DeclarationError, SinkError
from lakehouse.settings import Settings
from lakehouse.sinks import base
from lakehouse.sinks.formats import avro, encoded, protobuf
from lakehouse.sinks.targets.kafka_messages import (
    ANSWER,
    TOPIC,
    TYPES,
    WAIT,
    Format,
    Topics,
    Values,
    id_of,
    made_again,
    positions_of,
    topic_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer

TABLE, VERSION, CHANGE = "lakehouse-table", "lakehouse-version", "lakehouse-change"
_LOOK = 10.0  # seconds between two looks whether the topic is the one that was opened
Latency = Literal["commit", "real-time"]
# a transaction that its process left open holds back readers of the topic for so long at most, if no other process takes over
_TRANSACTION_MS = 300_000


@dataclass(frozen=True, slots=True)
class KafkaTopic(Target):
    """A topic that holds, for each key, the row of a table."""

    symbol: ClassVar[str] = "kafka"
    order_by: tuple[str, ...]
    partitions: int
    format: Format = "json"
    latency: Latency = "commit"

    @property
    def real_time(self) -> str:
        return f"{self.name}.real-time" if self.latency == "real-time" else ""

    def places(self, rows: encoded.Changes) -> list[int]:
        """Returns the partition of each row. Raises SinkError for a row without the columns that messages are ordered by."""
        return [zlib.crc32(text.encode()) % self.partitions for text in rows.keys(self.order_by)]

    def check(self, table: str, columns: "pa.Schema") -> None:
        if self.format != "json":
            (avro if self.format == "avro" else protobuf).schema_of(table, columns)

    def sink(self, settings: Settings, table: str) -> "KafkaSink":
        return KafkaSink(settings, self, table)


def kafka_topic(
    topic: str,
    *,
    key: str | Sequence[str],
    order_by: str | Sequence[str] = (),
    partitions: int = 1,
    format: Format = "json",
    corrections: Corrections = "send",
    latency: Latency = "commit",
) -> KafkaTopic:
    """A topic to which a table is published: `publish=[kafka_topic(...)]`.

        @row_table(
            layer="silver",
            publish=[kafka_topic("payments", key=["account", "payment_id"], order_by="account", partitions=5)],
        )
        def payments(payment_events: DataFrame) -> DataFrame: ...

    Each version of the table is one transaction. A row is a message, a deletion a message without a
    value. Headers name the table, the version and the kind of change.

    :param topic: its name at the broker, where it is made as a compacted topic unless it is there.
    :param key: the columns that identify a row: the key of its message. One column is text as it is,
        several are a JSON object.
    :param order_by: the columns of the key by whose values messages are ordered: messages with the same
        values are in one partition, in the order of the versions. By default the whole key.
    :param partitions: how many the topic has. A topic with another number is refused.
    :param format: "json", an object for each row without the columns that are null; or "avro" or "protobuf", by a schema that
        is kept in the registry of the settings as the newest of the subject `<topic>-value` (extras `[avro]`, `[protobuf]`).
    :param corrections: "send", "hold" or "ignore" what changes rows that were final before.
    :param latency: "real-time" sends rows to the topic `<topic>.real-time`, too, milliseconds after their record and before
        their commit: at least once, each message under its record's topic, partition and offset. A row that is not committed
        after all is retracted there, by a message without a value. For row tables whose rows are each made of one record of a
        topic, and for "json".
    :raises DeclarationError: for values that do not fit each other.
    """
    one_of("latency", latency, get_args(Latency))
    if latency == "real-time" and format != "json":
        raise DeclarationError(
            f"target={topic}, format={format!r}: messages in real time are JSON; leave format= out, or latency="
        )
    one_of("format", format, ("json", *TYPES))
    if not topic:
        raise DeclarationError("topic='': the topic that it writes to; give one")
    keys = columns_of(key)
    order = columns_of(order_by) or keys
    if partitions < 1:
        raise DeclarationError(f"target={topic}, partitions={partitions}: at least one; raise it")
    if unknown := [name for name in order if name not in keys]:
        raise DeclarationError(
            f"target={topic}, order_by={unknown[0]!r}: a key stays in one partition; add {unknown[0]} to key={list(keys)}"
        )
    return KafkaTopic(topic, keys, corrections, order, partitions, format, latency)


class KafkaSink(Sink):
    """Writes a table to a topic."""

    def __init__(self, settings: Settings, target: KafkaTopic, table: str) -> None:
        self._settings, self._target, self._table = settings, target, table
        self._positions = positions_of(target.name)
        self._producer: Producer  # once it is open
        self._begun = False
        self._topic_id = ""  # of the topic that was opened
        self._looked = 0.0  # when that was seen last
        self._topics = Topics(settings, target.name)
        self._values = Values(settings, target.name, target.format, table)

    def open(self) -> None:
        from confluent_kafka import Producer

        from lakehouse.runtime.kafka_broker import ensure_topics
        from lakehouse.runtime.kafka_options import client_config

        topics = {self._target.name: self._target.partitions, self._positions: 1}
        ensure_topics(self._settings, topics, {"cleanup.policy": "compact"})
        deadline = time.monotonic() + ANSWER
        partitions = len(self._topics.partitions(self._target.name))
        while not partitions and time.monotonic() < deadline:  # it was made just now
            time.sleep(WAIT)
            partitions = len(self._topics.partitions(self._target.name))
        if partitions != self._target.partitions:
            raise SinkError(
                f"topic={self._target.name}, partitions={self._target.partitions}: the broker has {partitions}, and another "
                "number moves keys to other partitions, out of their order; declare as many"
            )
        own: dict[str, Any] = {
            # by the topic: of two that write it each would refuse the other
            "transactional.id": id_of(self._target.name),
            "transaction.timeout.ms": _TRANSACTION_MS,
            "compression.type": "lz4",
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
            # of each message that was sent the client would keep a report, until somebody asks
            "delivery.report.only.error": True,
            "log_level": 0,  # what matters is raised
        }
        self._topic_id, self._looked = self._topics.id(), time.monotonic()
        self._producer = Producer(client_config(self._settings) | own)
        with self._topics.failing("taking over its transactions"):
            self._producer.init_transactions(ANSWER)

    def position(self) -> Position | None:
        last, of_topic = None, ""
        for message in self._topics.messages(self._positions):
            last, of_topic = message.value(), topic_of(message)
        # an earlier version of the library wrote none, and a comparison, which opens nothing, shows what is missing
        if of_topic and self._topic_id and of_topic != self._topic_id:
            raise made_again(self._target.name, of_topic, self._topic_id)
        # else all would be sent again
        if last is None and any(
            dict(message.headers() or ()).get(TABLE)
            for message in self._topics.messages(self._target.name)
        ):
            what = f"the topic has rows of a follower, and {self._positions} no record, so the position was removed"
            raise base.unsound(self._target.name, what)
        return base.position_of(self._target.name, f"the last record of {self._positions}", last)

    def columns(self, schema: "pa.Schema") -> None:
        if self._target.format != "json":
            self._values.fit(schema)

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        of_version: dict[str, str | bytes | None] = {TABLE: self._table, VERSION: str(version)}
        headers = {kind: of_version | {CHANGE: kind} for kind in get_args(Change)}
        self._begin()
        for part in encoded.of(changes).parts():
            keys, places = part.keys(self._target.key), self._target.places(part)
            rows = zip(part.kinds, keys, places, self._values.encoded(part), strict=True)
            self._send(
                self._target.name,
                ((key, value, to, headers[kind]) for kind, key, to, value in rows),
            )

    def commit(self, position: Position) -> None:
        self._begin()
        if time.monotonic() - self._looked > _LOOK:
            if (now := self._topics.id()) != self._topic_id:
                raise made_again(self._target.name, self._topic_id, now)
            self._looked = time.monotonic()
        self._send(self._positions, [("position", position.to_json(), 0, {TOPIC: self._topic_id})])
        with self._topics.failing(f"committing version {position.version}"):
            self._producer.commit_transaction(ANSWER)
        self._begun = False

    def rows(self, version: int) -> Iterator[tuple[str, str, bool]]:
        rows: dict[str, tuple[str, bool]] = {}
        for message in self._topics.messages(self._target.name):
            headers = dict(message.headers() or ())
            ours = headers.get(TABLE) == self._table.encode()
            if ours and int(headers.get(VERSION) or 0) > version:
                continue
            key, value = (message.key() or b"").decode(errors="replace"), message.value()
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = self._values.text(value), ours
        yield from ((key, value, ours) for key, (value, ours) in rows.items())

    def close(self) -> None:
        if self._begun:
            with self._topics.failing("ending its transaction"):
                self._producer.abort_transaction(ANSWER)

    def as_held(self, row: Row) -> Row:
        return protobuf.as_held(row) if self._target.format == "protobuf" else row

    def _begin(self) -> None:
        if not self._begun:
            with self._topics.failing("beginning a transaction"):
                self._producer.begin_transaction()
            self._begun = True

    def _send(
        self,
        topic: str,
        messages: Iterable[tuple[str, str | bytes | None, int, dict[str, str | bytes | None]]],
    ) -> None:
        """Sends messages: key, value, partition and headers of each."""
        from confluent_kafka import KafkaException

        produce, key = self._producer.produce, ""
        try:
            for key, value, partition, headers in messages:
                while True:
                    try:
                        produce(topic, value, key, partition, headers=headers)
                        break
                    except BufferError:  # the queue is full: the broker sets the pace
                        self._producer.poll(0.1)
        except KafkaException as err:
            raise self._topics.refused(f"sending the row of key {key!r}", err.args[0]) from err
