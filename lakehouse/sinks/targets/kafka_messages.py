"""The topics of a target at a broker: their committed messages, and the meaning of the broker's errors."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any

from lakehouse.errors import AccessError, BrokerError, LakehouseError, SinkAway, SinkError
from lakehouse.runtime import kafka_client, kafka_topics
from lakehouse.settings import Settings
from lakehouse.sinks.claims import away, replaced, translated

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

ANSWER = 60.0  # seconds for the broker to answer
TOPIC = "lakehouse-topic-id"  # a header of the position
WAIT = 0.1  # seconds in which messages are gathered


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
    return SinkError(
        f"topic={topic}, id={now}: its follower wrote the topic of the id {before}, so it was deleted and made again, and "
        f"lacks what was sent before; `lakehouse reconcile sink {topic} --repair` sends all rows"
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
                    raise _away(self._topic, f"reading {topic}", "no message, and no end")

    def _consumer(self) -> "Consumer":
        from confluent_kafka import Consumer

        from lakehouse.runtime.kafka_options import client_config

        own: dict[str, Any] = {
            "group.id": f"lakehouse.{self._topic}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # the end of a partition is an empty answer: 500 by default
            "isolation.level": "read_committed",
            "log_level": 0,
        }
        return Consumer(client_config(self._settings) | own)

    def failing(self, doing: str) -> AbstractContextManager[None]:
        """Raises what an error of the client means."""
        from confluent_kafka import KafkaException

        return translated(KafkaException, lambda err: self.refused(doing, err.args[0]))

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
            return _away(topic, doing, error.str())
        if error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
            return replaced(f"topic={topic}")
        return SinkError(
            f"topic={topic}: {doing} failed, {error.name()}: {error.str()}; the next process goes on "
            "from the position"
        )


def _away(topic: str, doing: str, reason: str) -> SinkAway:
    return away(
        f"topic={topic}, {doing}",
        f"the broker must answer within {ANSWER:.0f} s and did not ({reason})",
    )
