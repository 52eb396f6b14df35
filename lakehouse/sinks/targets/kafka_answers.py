"""Names at the broker, and what its errors mean for the follower of a topic."""

from typing import TYPE_CHECKING, Any

from lakehouse.errors import AccessError, LakehouseError, SinkAway, SinkError
from lakehouse.runtime import kafka_client
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka import Message

ANSWER = 60.0  # seconds for the broker to answer
TOPIC = "lakehouse-topic-id"  # a header of the position


def positions_of(topic: str) -> str:
    """The topic that holds the position of this one."""
    return f"{topic}.position"


def id_of(topic: str) -> str:
    """The transactional id of whoever writes the topic."""
    return f"lakehouse.{topic}"


def topic_of(message: "Message") -> str:
    """The id of the topic that a position was written of."""
    found = dict(message.headers() or ()).get(TOPIC)
    return found.decode() if isinstance(found, bytes) else ""


def away(topic: str, doing: str, said: str) -> SinkAway:
    return SinkAway(
        f"topic={topic}, {doing}: the broker must answer within {ANSWER:.0f} s and did not ({said}); "
        "its follower asks again, and goes on from the position"
    )


def made_again(topic: str, before: str, now: str) -> SinkError:
    return SinkError(
        f"topic={topic}, id={now}: its follower wrote the topic of the id {before}, so it was deleted and made again, and "
        f"lacks what was sent before; `lakehouse reconcile sink {topic} --repair` sends all rows"
    )


def refused(settings: Settings, topic: str, doing: str, error: Any) -> LakehouseError:
    """The error to raise for a `KafkaError`."""
    from confluent_kafka import KafkaError

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
            kafka_client.check_access(settings)
        except AccessError as err:
            return err
        return away(topic, doing, error.str())
    if error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
        return SinkError(
            f"topic={topic}: another process has taken it over ({error.name()}); one process writes a target, so "
            "this one ends, and nothing of its transaction is visible"
        )
    return SinkError(
        f"topic={topic}: {doing} failed, {error.name()}: {error.str()}; the next process goes on "
        "from the position"
    )
