"""The start of a topic that has a history: the messages of an instant, whose offsets are kept by partition."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Table
from lakehouse.errors import CommitError, DeclarationError
from lakehouse.ranges import BEGINNING, EPOCH, text
from lakehouse.runtime import kafka_topics
from lakehouse.settings import Settings
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position.checkpoints import Written
from lakehouse.stream.reading import offsets
from lakehouse.stream.reading.offsets import Broker, Gap, Offsets

_NONE = -1  # the offset of no message


def resolve(settings: Settings, table: Table, topic: KafkaSource) -> Offsets:
    """Asks the broker with which offsets the topic begins, keeps and returns them: for a table that has read nothing yet.

    An event may be `max_future_skew` ahead of its message's timestamp, so messages that much earlier
    are read, too. Raises DeclarationError for an instant that is still to come, CommitError if the
    topic does not reach back to it, BrokerError.
    """
    assert topic.starting is not None, topic.address
    if (now := datetime.now(UTC)) < topic.starting:
        raise DeclarationError(
            f"table={table.name}, topic={topic.address}, starting={text(topic.starting)}: it is {text(now)}, and the history "
            "cannot have all rows before an instant that is still to come; "
            "declare one that has passed, and that the history reaches"
        )
    since, client = topic.starting - topic.max_future_skew, kafka_topics.admin(settings)
    # the ends first: what is sent meanwhile lies after them
    found = offsets.on_broker(client, [topic.address])[topic.address]
    partitions = {topic.address: [int(p) for p in found.first]}
    sent = _sent_since(client, partitions, since)[topic.address]
    known = offsets.known(settings, table)
    begins = {topic.address: starts(table, topic.address, found, sent, known.gaps, since)}
    offsets.note(settings, table, replace(known, starts=begins))
    return begins


def starts(
    table: Table,
    topic: str,
    found: Broker,
    sent: Mapping[str, int],
    gaps: Sequence[Gap],
    since: datetime,
) -> dict[str, int]:
    """Returns the offset with which each partition begins: that of its first message from that time on, or its end.

    Raises CommitError if messages from that time on may have been removed.
    """
    begins = _or_end(sent, found)
    for p, offset in begins.items():
        first = found.first[p]
        if offset <= first and offsets.past(gaps, topic, p, 0) < first:
            raise CommitError(
                f"table={table.name}, topic={topic}, partition={p}, offset={first}: the topic begins there, and has no message "
                f"from before {text(since)}, so messages from after that may be gone, which the history does not have; declare a "
                "later starting=, and a history that reaches it; or, if none of them counts, `lakehouse topic accept-gap "
                f"{table.name}` goes on without them"
            )
    return begins


def removed(found: Mapping[str, Broker], gaps: Sequence[Gap]) -> list[Gap]:
    """Returns the gaps at the beginning of topics, of offsets that they no longer have, which nobody has accepted."""
    return [
        Gap(topic, p, 0, first)
        for topic, of in found.items()
        for p, first in of.first.items()
        if offsets.past(gaps, topic, p, 0) < first
    ]


def is_history_read(source: RecordSource, last: Written | Commit) -> bool:
    """Returns True if a source is a history that was read to its end by then: the cut set the watermark to its instant."""
    return source.until is not None and (last.watermark or BEGINNING) >= source.until


def first_since(client, topic: str, broker: Broker, instant: datetime) -> dict[str, int]:
    """Returns the offset of each partition's first message with this timestamp or a later one, or its end. Raises BrokerError."""
    partitions = {topic: [int(p) for p in broker.end]}
    return _or_end(_sent_since(client, partitions, instant)[topic], broker)


def _or_end(sent: Mapping[str, int], broker: Broker) -> dict[str, int]:
    return {p: broker.end[p] if offset == _NONE else offset for p, offset in sent.items()}


def _sent_since(client, partitions: Mapping[str, Sequence[int]], instant: datetime) -> Offsets:
    """Returns the first offset of a message with this timestamp or a later one: topic -> partition -> offset."""
    from confluent_kafka.admin import OffsetSpec

    # no message is older, and negative numbers mean other things
    milliseconds = max(0, (instant - EPOCH) // timedelta(milliseconds=1))
    spec = OffsetSpec.for_timestamp(milliseconds)
    return kafka_topics.listed(client, partitions, spec, {}, least=_NONE)
