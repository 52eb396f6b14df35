"""The topics of a target at a broker: their committed messages, what the broker's errors mean, and the values of messages."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from lakehouse.declare.targets import Row
from lakehouse.errors import (
    AccessError,
    BrokerError,
    LakehouseError,
    RegistryAway,
    SinkAway,
    SinkError,
)
from lakehouse.runtime import kafka_client, kafka_topics
from lakehouse.settings import Settings
from lakehouse.sinks import base
from lakehouse.sinks.formats import avro, protobuf
from lakehouse.sinks.formats.encoded import Changes
from lakehouse.storage.position.schemas import Schema, number_of

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, Message

    from lakehouse.runtime.schema_registry import Registry

ANSWER = 60.0  # seconds for the broker to answer
TOPIC = "lakehouse-topic-id"  # a header of the position
WAIT = 0.1  # seconds in which messages are gathered
Format = Literal["json", "avro", "protobuf"]
TYPES = {"avro": "AVRO", "protobuf": "PROTOBUF"}  # of schemas at the registry, by format


def positions_of(topic: str) -> str:
    """Returns the topic that holds the position of this one."""
    return f"{topic}.position"


def id_of(topic: str) -> str:
    """Returns the transactional id of the writer of the topic."""
    return f"lakehouse.{topic}"


def topic_of(message: "Message") -> str:
    """Returns the id of the topic that a position belongs to."""
    id = dict(message.headers() or ()).get(TOPIC)
    return id.decode() if isinstance(id, bytes) else ""


def made_again(topic: str, before: str, now: str) -> SinkError:
    return base.unsound(
        topic,
        f"its topic (id={before}) was deleted and made again (id={now}), and lacks what was sent before",
    )


class Topics:
    """The topic of a target and that of its position."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings, self._topic = settings, topic

    def id(self) -> str:
        """Returns the id of the topic; empty if the broker gives none."""
        try:
            ids = kafka_topics.ids(kafka_client.admin(self._settings), [self._topic])
            return ids[self._topic][0]
        except BrokerError as err:
            raise SinkAway(str(err)) from err

    def partitions(self, topic: str) -> list[int]:
        with self.failing("asking for its partitions"), closing(self._consumer()) as consumer:
            return sorted(consumer.list_topics(topic, timeout=ANSWER).topics[topic].partitions)

    def messages(self, topic: str) -> "Iterator[Message]":
        """Yields the committed messages of a topic, in the order of each partition; none if there is no such topic."""
        from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

        waiting = set(self.partitions(topic))
        with closing(self._consumer()) as consumer:
            consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in waiting])
            deadline = time.monotonic() + ANSWER
            while waiting:
                goes_on = False  # errors that pass are no answer
                for message in consumer.consume(10_000, WAIT):
                    error = message.error()
                    goes_on |= error is None or error.code() == KafkaError._PARTITION_EOF
                    if error is None:
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:
                        waiting.discard(message.partition())
                    elif not (error.retriable() or kafka_client.is_of_group(error)):
                        raise self.refused(f"reading {topic}", error)
                if goes_on:
                    deadline = time.monotonic() + ANSWER
                elif time.monotonic() > deadline:
                    raise self._silent(f"reading {topic}", "no message, and no end")

    def _consumer(self) -> "Consumer":
        own = {
            "fetch.wait.max.ms": 20,  # the end of a partition is an empty answer: 500 by default
            "isolation.level": "read_committed",
        }
        return kafka_client.consumer(self._settings, f"lakehouse.{self._topic}", own)

    def failing(self, doing: str) -> AbstractContextManager[None]:
        """Raises what an error of the client means."""
        from confluent_kafka import KafkaException

        return base.translated(KafkaException, lambda err: self.refused(doing, err.args[0]))

    def refused(self, doing: str, error: Any) -> LakehouseError:
        """Returns the error to raise for a `KafkaError`."""
        from confluent_kafka import KafkaError

        topic = self._topic
        of_topics = f"READ and WRITE on the topics {topic} and {positions_of(topic)}"
        of_id = f"WRITE on the transactional id {id_of(topic)}"
        right = of_id if error.name().startswith("TRANSACTIONAL_ID") else of_topics
        if denied := kafka_client.denied(error, f"topic={topic}, {doing}", right):
            return denied
        silent = (
            KafkaError._TIMED_OUT,
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._AUTHENTICATION,
            KafkaError._SSL,
        )
        if error.code() in silent:
            try:
                kafka_client.check_access(self._settings)
            except AccessError as err:
                return err
            return self._silent(doing, error.str())
        if error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
            return base.replaced(f"topic={topic}")
        why = f"{error.name()}: {error.str()}"
        return base.failure(f"topic={topic}, {doing}", "failed", why)

    def _silent(self, doing: str, why: str) -> SinkError:
        return base.failure(
            f"topic={self._topic}, {doing}", "away", f"{why}: it must answer within {ANSWER:.0f} s"
        )


class Values:
    """Writes and reads the values of one topic."""

    def __init__(self, settings: Settings, topic: str, format: Format, table: str) -> None:
        self._settings, self._topic, self._format, self._table = settings, topic, format, table
        self._encode: Callable[[Row], bytes] | None = None  # of a format with schemas
        self._schemas: dict[int | None, Schema | None] = {}  # of the registry, by id

    def fit(self, schema: "pa.Schema") -> None:
        """Registers the schema of rows with these columns, for a format that has one."""
        kind, subject = TYPES[self._format], f"{self._topic}-value"
        with self._registry() as registry:
            if kind == "AVRO":
                written = avro.schema_of(self._table, schema)
                number = registry.register(subject, json.dumps(written), kind)
                self._encode = avro.encoder(written, number)
            else:
                text = protobuf.schema_of(self._table, schema, registry.newest(subject))
                number = registry.register(subject, text, kind)
                self._encode = protobuf.encoder(text, number)

    def encoded(self, changes: Changes) -> Sequence[str | bytes | None]:
        """Returns the values of the messages; None for a deletion."""
        if write := self._encode:
            return [None if change.kind == "delete" else write(change.row) for change in changes]
        values = zip(changes.kinds, changes.values(), strict=True)
        return [None if kind == "delete" else value for kind, value in values]

    def text(self, value: bytes) -> str:
        """Returns a value as `encoding` writes its row, or as text if it is none."""
        if self._format != "json":
            number = number_of(value)
            if number not in self._schemas:
                with self._registry() as registry:
                    self._schemas[number] = registry.schema(number) if number is not None else None
            schema = self._schemas[number]
            if schema and schema.type == TYPES[self._format]:
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
            raise SinkAway(f"topic={self._topic}: {err}") from err
