"""What a reader of a topic sees: the messages of transactions that were committed."""

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings


def read(settings: Settings, topic: str, partitions: int) -> list[Message]:
    """All that a reader of committed messages sees, partition by partition."""
    own = {"group.id": "test", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer(client_config(settings) | own)
    consumer.assign([TopicPartition(topic, n, 0) for n in range(partitions)])
    found, open_ends = [], set(range(partitions))
    while open_ends:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is None:
            found.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            open_ends.discard(message.partition())
    consumer.close()
    return sorted(found, key=lambda each: (each.partition(), each.offset()))
