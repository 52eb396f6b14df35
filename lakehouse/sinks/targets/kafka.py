"""Topics of Kafka as targets: each version of a table is one transaction, and its position is in it.

The position is a record of a compacted topic of its own, `<topic>.position`. A follower first takes
the transactional id over, which ends the transaction of the process before and refuses that process
from then on, and only then reads the position.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

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
from lakehouse.errors import (
    BrokerError,
    DeclarationError,
    LakehouseError,
    RegistryAway,
    SinkAway,
    SinkError,
)
from lakehouse.runtime import kafka_client, kafka_topics
from lakehouse.settings import Settings
from lakehouse.sinks.formats import avro, encoded, protobuf
from lakehouse.sinks.formats.encoded import Changes
from lakehouse.sinks.targets.kafka_answers import (
    ANSWER,
    TOPIC,
    away,
    id_of,
    made_again,
    positions_of,
    refused,
    topic_of,
)
from lakehouse.storage.position.schemas import Schema, number_of

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, Message, Producer

    from lakehouse.runtime.schema_registry import Registry

Format = Literal["json", "avro", "protobuf"]
_TYPES = {"avro": "AVRO", "protobuf": "PROTOBUF"}  # of schemas at the registry, by format
TABLE, VERSION, CHANGE = "lakehouse-table", "lakehouse-version", "lakehouse-change"
_LOOK = 10.0  # seconds between two looks whether the topic is the one that was opened
# a transaction that its process left open holds back readers of the topic for so long at most, if no other process takes over
_TRANSACTION_MS = 300_000
_WAIT = 0.1  # seconds in which messages are gathered


@dataclass(frozen=True, slots=True)
class KafkaTopic(Target):
    """A topic that holds, for each key, the row of a table."""

    order_by: tuple[str, ...]
    partitions: int
    format: Format = "json"

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
    :raises DeclarationError: for values that do not fit each other.
    """
    one_of("format", format, ("json", *_TYPES))
    one_of("corrections", corrections, ("send", "hold", "ignore"))
    keys = columns_of(key)
    order = columns_of(order_by) or keys
    if not keys or partitions < 1:
        raise DeclarationError(
            f"target={topic}, key={list(keys)}, partitions={partitions}: at least one column and one partition"
        )
    if unknown := [name for name in order if name not in keys]:
        raise DeclarationError(
            f"target={topic}, order_by={unknown[0]!r}: a key stays in one partition, so that its deletion comes after its row; "
            f"add {unknown[0]} to key={list(keys)}"
        )
    return KafkaTopic(topic, keys, corrections, order, partitions, format)


class KafkaSink(Sink):
    """Writes a table to a topic."""

    def __init__(self, settings: Settings, target: KafkaTopic, table: str) -> None:
        self._settings, self._target, self._table = settings, target, table
        self._positions = positions_of(target.name)
        self._producer: Producer | None = None
        self._begun = False
        self._topic_id, self._looked = (
            "",
            0.0,
        )  # of the topic that was opened; when that was seen last
        self._encoded: Callable[[Row], bytes] | None = None  # of a format with schemas

    def open(self) -> None:
        from confluent_kafka import Producer

        from lakehouse.runtime.kafka_broker import ensure_topics
        from lakehouse.runtime.kafka_options import client_config

        topics = {self._target.name: self._target.partitions, self._positions: 1}
        ensure_topics(self._settings, topics, {"cleanup.policy": "compact"})
        deadline = time.monotonic() + ANSWER
        while not (there := len(self._partitions(self._target.name))):  # it was made just now
            if time.monotonic() > deadline:
                break
            time.sleep(_WAIT)
        if there != self._target.partitions:
            raise SinkError(
                f"topic={self._target.name}, partitions={self._target.partitions}: the broker has {there}, and with another "
                "number a key would change its partition, and lose its order; declare the number that is there"
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
        self._topic_id, self._looked = self._id_now(), time.monotonic()
        self._producer = Producer(client_config(self._settings) | own)
        with self._failing("taking over its transactions"):
            self._producer.init_transactions(ANSWER)

    def position(self) -> Position | None:
        last, of_topic = None, ""
        for message in self._messages(self._positions):
            last, of_topic = message.value(), topic_of(message)
        # an earlier version of the library wrote none, and a comparison, which opens nothing, shows what is missing
        if of_topic and self._topic_id:
            self._check_same(of_topic, self._topic_id)
        if last is None:
            self._check_nothing_sent()
            return None
        try:
            return Position.from_json(last)
        except ValueError as err:
            raise SinkError(
                f"topic={self._positions}: its last record is the position of {self._target.name}, and holds something else "
                f"({last[:100]!r}); `lakehouse reconcile sink {self._target.name} --repair` writes a new one"
            ) from err

    def columns(self, schema: "pa.Schema") -> None:
        if self._target.format == "json":
            return
        kind, subject = _TYPES[self._target.format], f"{self._target.name}-value"
        with self._registry() as registry:
            if kind == "AVRO":
                written = avro.schema_of(self._table, schema)
                number = registry.register(subject, json.dumps(written), kind)
                self._encoded = avro.encoder(written, number)
            else:
                text = protobuf.schema_of(self._table, schema, registry.newest(subject))
                number = registry.register(subject, text, kind)
                self._encoded = protobuf.encoder(text, number)

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        of_version: dict[str, str | bytes | None] = {TABLE: self._table, VERSION: str(version)}
        headers = {kind: of_version | {CHANGE: kind} for kind in get_args(Change)}
        self._begin()
        for part in encoded.of(changes).parts():
            keys, order = part.keys(self._target.key), part.keys(self._target.order_by)
            rows = zip(
                part.kinds, keys, map(self._partition, order), self._values(part), strict=True
            )
            self._send(
                self._target.name,
                ((key, value, to, headers[kind]) for kind, key, to, value in rows),
            )

    def commit(self, position: Position) -> None:
        self._begin()
        if time.monotonic() - self._looked > _LOOK:
            self._check_same(self._topic_id, self._id_now())
            self._looked = time.monotonic()
        self._send(self._positions, [("position", position.to_json(), 0, {TOPIC: self._topic_id})])
        with self._failing(f"committing version {position.version}"):
            self._writer.commit_transaction(ANSWER)
        self._begun = False

    def rows(self, version: int) -> Iterator[tuple[str, str, bool]]:
        found: dict[str, tuple[str, bool]] = {}
        schemas: dict[int | None, Schema | None] = {}
        for message in self._messages(self._target.name):
            headers = dict(message.headers() or ())
            ours = headers.get(TABLE) == self._table.encode()
            if ours and int(headers.get(VERSION) or 0) > version:
                continue
            key, value = (message.key() or b"").decode(errors="replace"), message.value()
            if value is None:
                found.pop(key, None)
            else:
                found[key] = self._text(value, schemas), ours
        yield from ((key, value, ours) for key, (value, ours) in found.items())

    def close(self) -> None:
        if self._begun:
            with self._failing("ending its transaction"):
                self._writer.abort_transaction(ANSWER)

    def as_held(self, row: Row) -> Row:
        return protobuf.as_held(row) if self._target.format == "protobuf" else row

    def _text(self, value: bytes, schemas: "dict[int | None, Schema | None]") -> str:
        """A value as `encoding` writes its row, or as text if it is none. `schemas`: those of the registry so far."""
        if self._target.format != "json":
            number = number_of(value)
            if number not in schemas:
                with self._registry() as registry:
                    schemas[number] = registry.schema(number) if number is not None else None
            schema = schemas[number]
            if schema and schema.type == _TYPES[self._target.format]:
                with suppress(ValueError):
                    if schema.type == "AVRO":
                        return avro.decoded(value, schema.text)
                    return protobuf.decoded(value, schema)
        return value.decode(errors="replace")

    @contextmanager
    def _registry(self) -> "Iterator[Registry]":
        from lakehouse.runtime.schema_registry import registry

        try:
            yield registry(self._settings)
        except RegistryAway as err:
            raise SinkAway(f"topic={self._target.name}: {err}") from err

    @property
    def _writer(self) -> "Producer":
        assert self._producer is not None, "it has been opened"
        return self._producer

    def _begin(self) -> None:
        if not self._begun:
            with self._failing("beginning a transaction"):
                self._writer.begin_transaction()
            self._begun = True

    def _id_now(self) -> str:
        """The id of the topic, empty of a broker that gives none."""
        name = self._target.name
        try:
            return kafka_topics.ids(kafka_client.admin(self._settings), [name])[name][0]
        except BrokerError as err:
            raise SinkAway(str(err)) from err

    def _check_same(self, before: str, now: str) -> None:
        """Raises SinkError for another topic of that name: it lacks what was sent to the one before."""
        if before != now:
            raise made_again(self._target.name, before, now)

    def _check_nothing_sent(self) -> None:
        """Raises SinkError if the topic has rows of a follower, and the position is lost: all would be sent again."""
        if any(
            dict(message.headers() or ()).get(TABLE)
            for message in self._messages(self._target.name)
        ):
            raise SinkError(
                f"topic={self._positions}: it has no record, and {self._target.name} has rows of a follower, so the position was "
                f"removed; `lakehouse reconcile sink {self._target.name} --repair` sends what differs and writes a new one"
            )

    def _values(self, changes: Changes) -> Sequence[str | bytes | None]:
        """The values of the messages; of a deletion none."""
        write = self._encoded
        if write:
            return [None if each.kind == "delete" else write(each.row) for each in changes]
        values = zip(changes.kinds, changes.values(), strict=True)
        return [None if kind == "delete" else value for kind, value in values]

    def _send(
        self,
        topic: str,
        messages: Iterable[tuple[str, str | bytes | None, int, dict[str, str | bytes | None]]],
    ) -> None:
        """Sends messages: key, value, partition and headers of each."""
        from confluent_kafka import KafkaException

        produce, key = self._writer.produce, ""
        try:
            for key, value, partition, headers in messages:
                while True:
                    try:
                        produce(topic, value, key, partition, headers=headers)
                        break
                    except BufferError:  # the queue is full: the broker sets the pace
                        self._writer.poll(0.1)
        except KafkaException as err:
            raise self._refused(f"sending the row of key {key!r}", err.args[0]) from err

    def _partition(self, order: str) -> int:
        return zlib.crc32(order.encode()) % self._target.partitions

    def _partitions(self, topic: str) -> list[int]:
        with self._failing("asking for its partitions"), closing(self._consumer()) as consumer:
            return sorted(consumer.list_topics(topic, timeout=ANSWER).topics[topic].partitions)

    def _messages(self, topic: str) -> "Iterator[Message]":
        """The committed messages of a topic, in the order of each partition; none if there is no such topic."""
        from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

        waiting = set(self._partitions(topic))
        with closing(self._consumer()) as consumer:
            consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in waiting])
            deadline = time.monotonic() + ANSWER
            while waiting:
                goes_on = False  # errors that pass are no answer
                for message in consumer.consume(10_000, _WAIT):
                    error = message.error()
                    goes_on |= error is None or error.code() == KafkaError._PARTITION_EOF
                    if error is None:
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:
                        waiting.discard(message.partition())
                    elif not (error.retriable() or kafka_client.is_of_group(error)):
                        raise self._refused(f"reading {topic}", error)
                if goes_on:
                    deadline = time.monotonic() + ANSWER
                elif time.monotonic() > deadline:
                    raise away(self._target.name, f"reading {topic}", "no message, and no end")

    def _consumer(self) -> "Consumer":
        from confluent_kafka import Consumer

        from lakehouse.runtime.kafka_options import client_config

        own: dict[str, Any] = {
            "group.id": f"lakehouse.{self._target.name}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # the end of a partition is an empty answer: 500 by default
            "isolation.level": "read_committed",
            "log_level": 0,
        }
        return Consumer(client_config(self._settings) | own)

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """Says what failed, and why."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as err:
            raise self._refused(doing, err.args[0]) from err

    def _refused(self, doing: str, error: Any) -> LakehouseError:
        return refused(self._settings, self._target.name, doing, error)
