"""Topics at the broker: their ids, their partitions, and their offsets."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakehouse.errors import BrokerError, LakehouseError
from lakehouse.runtime import kafka_client
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

_NO_ID = ("", "None", "AAAAAAAAAAAAAAAAAAAAAA")  # as brokers before 2.8 are answered for
_WITHIN = 30.0  # seconds for an answer of the broker
_AGAIN = 0.1  # seconds before it is asked once more
_NO_LEADER_YET = (5, 6)  # LEADER_NOT_AVAILABLE, NOT_LEADER_FOR_PARTITION


def admin(settings: Settings) -> "AdminClient":
    """Returns a client of a broker that answers. Raises AccessError, BrokerError, SettingsError."""
    kafka_client.check(settings, _WITHIN)
    return kafka_client.admin(settings)


def ids(client, topics: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
    """Returns the id of each topic, empty if the broker gives none, and its partitions. Raises AccessError, BrokerError."""
    from confluent_kafka import KafkaException, TopicCollection

    futures = client.describe_topics(TopicCollection(list(topics)), request_timeout=_WITHIN)
    by_topic = {}
    for topic, future in futures.items():
        try:
            described = future.result()
        except KafkaException as err:
            raise _unanswered(topic, "describe it", err.args[0]) from err
        if not described.partitions:  # as of a broker that went away meanwhile
            raise _unanswered(topic, "name its partitions", "it named none")
        id = str(described.topic_id or "")
        by_topic[topic] = "" if id in _NO_ID else id, [p.id for p in described.partitions]
    return by_topic


def listed(
    client,
    partitions: Mapping[str, Sequence[int]],
    spec,
    options: Mapping[str, Any],
    least: int = 0,
) -> dict[str, dict[str, int]]:
    """Returns the offset of each partition by topic; an offset below `least` is asked for again.

    So is a partition that was created a moment ago and may have no leader yet.
    """
    from confluent_kafka import KafkaException, TopicPartition

    requests = {
        TopicPartition(topic, p): spec for topic, numbers in partitions.items() for p in numbers
    }
    by_topic: dict[str, dict[str, int]] = {topic: {} for topic in partitions}
    deadline = time.monotonic() + _WITHIN
    while requests:
        late = time.monotonic() > deadline
        for at, future in client.list_offsets(requests, request_timeout=_WITHIN, **options).items():
            try:
                offset = future.result().offset
            except KafkaException as err:
                if err.args[0].code() not in _NO_LEADER_YET or late:
                    raise _unanswered(at.topic, "name its offsets", err.args[0]) from err
                continue
            if offset >= least:
                by_topic[at.topic][str(at.partition)] = offset
                requests = {partition: spec for partition in requests if partition != at}
            elif late:  # as of a broker that goes away
                raise _unanswered(
                    at.topic, "name its offsets", f"offset {offset} for partition {at.partition}"
                )
        if requests:
            time.sleep(_AGAIN)
    return by_topic


def _unanswered(topic: str, what: str, why: "KafkaError | str") -> LakehouseError:
    if not isinstance(why, str):
        asked = f"topic={topic}, asked to {what}"
        if refused := kafka_client.denied(why, asked, "DESCRIBE on the topic"):
            return refused
        why = why.str()
    return BrokerError(
        f"topic={topic}: the broker must {what} within {_WITHIN:.0f} s and did not ({why}); check that the broker "
        f"runs and has the topic; `lakehouse topic create {topic}` makes it"
    )
