"""The topics that a producer fills, made before it sends anything."""

from lakehouse.producers.workload import Producer
from lakehouse.runtime import kafka_broker
from lakehouse.settings import Settings

# history has old timestamps: Kafka's seven days would delete it soon after it was sent
TOPIC = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}


def ensure_topics(settings: Settings, chosen: Producer, partitions: int) -> tuple[str, ...]:
    """Creates the missing topics of a producer and returns their names. Raises BrokerError."""
    compacted = kafka_broker.ensure_topics(
        settings, dict.fromkeys(chosen.compacted, 1), TOPIC | {"cleanup.policy": "compact"}
    )
    ordinary = dict.fromkeys((chosen.topic, *chosen.beside), partitions)
    return kafka_broker.ensure_topics(settings, ordinary, TOPIC) + compacted
