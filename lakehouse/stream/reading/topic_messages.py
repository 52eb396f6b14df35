"""The check that a table has each message of a partition once: offsets that it lacks are read from the broker.

Among changes of a database, a message that is no change is not missing either.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.errors import BrokerError
from lakehouse.runtime import kafka_client
from lakehouse.settings import Settings
from lakehouse.stream.reading.checked import Checked, examples

if TYPE_CHECKING:
    import numpy as np

_WITHIN = 30.0  # seconds for the next message


def checked(
    settings: Settings,
    source: RecordSource,
    partition: int,
    start: int,
    end: int,
    stored: "np.ndarray | None",
) -> Checked:
    """Compares offsets `start` to `end` (exclusive) with those that the table has."""
    import numpy as np

    stored = np.empty(0, dtype=np.int64) if stored is None else stored
    stored = stored[(stored >= start) & (stored < end)]
    once, counts = np.unique(stored, return_counts=True)
    doubled = once[counts > 1]
    absent = np.setdiff1d(np.arange(start, end), once, assume_unique=True)
    delivered = _delivered(settings, source.address, partition, absent) if len(absent) else {}
    passed_over = {o for o, no_change in delivered.items() if source.keys and no_change}
    missing = sorted(delivered.keys() - passed_over)
    shown = examples(missing, doubled, str)
    counts_of = len(stored), len(missing), len(doubled), len(passed_over)
    return Checked(source.address, partition, start, end, *counts_of, "; ".join(shown))


def is_no_change(value: bytes | None) -> bool:
    """Returns True if a message of Debezium gives no row: a tombstone, or a logical message (`transform.decoding.changes`)."""
    try:
        envelope = {} if value is None else json.loads(value)
        return value is None or (envelope.get("payload") or envelope).get("op") == "m"
    except (ValueError, AttributeError):
        return False


def _delivered(
    settings: Settings, topic: str, partition: int, absent: "np.ndarray"
) -> dict[int, bool]:
    """Returns those of the offsets that the topic delivers, each with True if its message is no change of a database."""
    import numpy as np
    from confluent_kafka import TopicPartition

    ranges = np.split(absent, np.flatnonzero(np.diff(absent) > 1) + 1)
    delivered: dict[int, bool] = {}
    with closing(kafka_client.consumer(settings, "lakehouse-offsets")) as consumer:
        for each in ranges:
            first, end = int(each[0]), int(each[-1]) + 1
            consumer.assign([TopicPartition(topic, partition, first)])
            read = _read(consumer, topic, partition, end)
            delivered |= {o: is_no_change(value) for o, value in read if first <= o < end}
    return delivered


def _read(consumer, topic: str, partition: int, end: int) -> Iterator[tuple[int, bytes | None]]:
    from confluent_kafka import KafkaError

    while True:
        message = consumer.poll(_WITHIN)
        error = message.error() if message else None
        if error and kafka_client.is_of_group(error):
            continue
        if error and error.code() == KafkaError._PARTITION_EOF:
            return
        what = f"topic={topic}, reading it"
        if error and (refused := kafka_client.denied(error, what, "READ on the topic")):
            raise refused
        if message is None or error:
            raise BrokerError(
                f"topic={topic}, partition={partition}: the next message must come within {_WITHIN:.0f} s and did not "
                f"({error or 'no answer'}); check that the broker runs, and run this again"
            )
        if message.offset() >= end:
            return
        yield message.offset(), message.value()
