"""Topics, read for an ingest table.

A short range is what the broker has handed out meanwhile; a long one, as in a catch-up, is read by
Spark. Either way a step takes from every partition what was there when the step was cut, so the order
in which the broker answers has no effect.
"""

import json
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Table
from lakehouse.errors import BrokerError, LakehouseError, SettingsError, TopicError
from lakehouse.runtime import kafka_client, kafka_in_spark, kafka_topics
from lakehouse.runtime.kafka_options import isolated
from lakehouse.settings import Settings
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import checkpoints
from lakehouse.storage.position.checkpoints import Written
from lakehouse.storage.session import Session
from lakehouse.stream.advance import IDLE, LOOK
from lakehouse.stream.reading import offset_ranges, offsets, readings, topic_starts
from lakehouse.stream.reading.checked import Checked, SourceCheck, compared, partitions_of
from lakehouse.stream.reading.contract import Frames, Looks, Present, Reader, Receded, Records
from lakehouse.stream.reading.offsets import Gap, Offsets
from lakehouse.stream.reading.topic_reader import TopicReader
from lakehouse.transform.decoding import decode, schemas

if TYPE_CHECKING:
    import numpy as np
    from confluent_kafka.admin import AdminClient

_HANDED_OUT = 10.0  # seconds for messages of a short range to come; then Spark reads it
_WITHIN = 30.0  # seconds for the next message


class Topics(Reader):
    """The reader of topics, with one consumer."""

    AWAY = (BrokerError,)

    def __init__(self, settings: Settings, table: Table, sources: Collection[RecordSource]) -> None:
        super().__init__(settings, table, sources)
        self.declared = cast(Mapping[str, KafkaSource], self.sources)
        self.topics = sorted(self.sources)
        # all of them have the same isolation
        self.reading = isolated(settings, self.sources[self.topics[0]].isolation)
        # an embedded broker has no address as long as it does not run
        self._client: AdminClient | None = None
        with_headers = {address for address, of in self.sources.items() if of.headers}
        self._messages = TopicReader(self.reading, table.name, settings.step_rows, with_headers)
        self.looks = Looks(IDLE)

    def begins(self, last: Written | Commit | None) -> Offsets:
        """Returns where the table resumes, by the broker and its last commit; a topic with a history at its instant."""
        self._client = self._client or kafka_topics.admin(self.settings)
        starts: dict[str, Mapping[str, int]] = {}
        for source in self.declared.values():
            if source.starting and last is None:
                starts |= topic_starts.resolve(self.settings, self.table, source)
        return offsets.start(self.settings, self.table, self.topics, last, starts)

    def latest_offset(self, at: Offsets) -> Offsets:
        with self.looks.look():
            described = kafka_topics.ids(self._client, self.topics)
        ids = {topic: identity for topic, (identity, _) in described.items()}
        offsets.check_ids(self.settings, self.table, ids)
        ends = offsets.ends(self._client, self.reading, described)
        self._messages.error = ""  # the broker has answered since
        if message := offsets.beyond(self.table, at, ends):
            raise Receded(
                TopicError(message),
                f"{message}; a broker that has just started may still recover it",
            )
        return ends

    def earliest_offset(self, ends: Offsets) -> Offsets:
        self._messages.lift()  # it is placed again, with these as well
        on_broker = offsets.on_broker(self._client, self.topics)
        return {topic: each.first for topic, each in on_broker.items()}

    def wait(self, seconds: float, *, to_the_end: bool = False) -> bool:
        """Waits, and returns True if there is a reason to ask the broker: a message, an error, or that nothing is read yet."""
        if to_the_end and self._messages.is_placed:
            self._messages.gather(seconds)
        elif to_the_end:
            self.query.stopping.wait(seconds)
        elif self._messages.is_placed:
            self._messages.wait(seconds)
        return not self._messages.is_placed or self._messages.has_news

    def read(self, begin: Offsets, end: Offsets) -> Records:
        """Reads what the broker has handed out; a longer range is left to Spark (`reread`)."""
        rows = offset_ranges.between(begin, end)
        if rows > self.settings.step_rows:
            self._messages.lift()
            return Records(begin, end, rows)
        if not self._messages.is_placed:
            self._messages.place(begin)
        if not rows:
            return Records(begin, begin, 0)
        by_topic = self._handed_out(end)
        if by_topic is None:
            self._messages.lift()
            return Records(begin, end, rows)
        # without rows, marks of transactions or compacted messages lie between
        return Records(begin, end, sum(each.num_rows for each in by_topic.values()), here=by_topic)

    def _handed_out(self, end: Offsets) -> Mapping[str, pa.Table] | None:
        """Returns the messages before these offsets.

        None if they do not come, or are too many: Spark reads them, or reports why it cannot.
        """
        deadline = time.monotonic() + _HANDED_OUT
        while offset_ranges.between(self._messages.reached, end):
            is_late = time.monotonic() > deadline
            if self._messages.is_full or self.query.stopping.is_set() or is_late:
                return None
            self._messages.gather(0.02)
        return self._messages.taken(end)

    def reread(self, session: Session, begin: Offsets, end: Offsets, at: datetime) -> Frames:
        return {
            topic: decode.topic_rows(session.spark, session.settings, source, begin.get(topic), end)
            for topic, source in self.declared.items()
        }

    def present(self) -> Present:
        client = self._client or kafka_topics.admin(self.settings)
        described = kafka_topics.ids(client, self.topics)
        return Present.before(offsets.ends(client, self.reading, described))

    def away(self, err: LakehouseError) -> tuple[str, float]:
        """Returns what to report. Raises AccessError if the broker turns this client away: waiting does not mend that."""
        if self.query.available_now:
            raise err
        kafka_client.check_access(self.reading)
        return f"{err}; it waits for the broker", 2 * LOOK

    def explained(self, err: BaseException, at: Offsets) -> BaseException:
        """Returns our own client's error for what Spark could not get from the broker, if there is one; else the given one."""
        if isinstance(err, LakehouseError):
            return err
        refused: LakehouseError | None
        refused = kafka_in_spark.refusal(self.reading, self.topics, err)
        if refused is None and kafka_in_spark.is_loss(err):
            try:  # our client asks for what is lost, and its error names it
                self.begins(checkpoints.standing(self.settings, self.table).last)
                offsets.check_there(self._client, self.table, at)
            except LakehouseError as known:
                refused = known
        if refused is None:
            return err
        refused.__cause__ = err
        return refused

    def close(self) -> None:
        self._messages.close()


class TopicCheck(SourceCheck[Topics]):
    """The check of topics, with what the broker still has."""

    def lost(self, last: Commit | None) -> list[Gap]:
        found = self.found()
        return offsets.lost(self.settings, self.table, found, last) if last else []

    def found(self) -> dict[str, offsets.Broker]:
        """Returns the broker's description of the topics. Raises TopicError for a topic that is not the one read."""
        topics = offsets.on_broker(kafka_topics.admin(self.settings), self.reader.topics)
        ids = {name: topic.id for name, topic in topics.items()}
        offsets.check_ids(self.settings, self.table, ids)
        return topics

    def verify(self, last: Commit) -> Iterator[Checked]:
        on_broker = self.found()
        known = offsets.known(self.settings, self.table)
        for topic in self.reader.topics:
            source = self.reader.declared[topic]
            checked: list[Checked] = []
            read = {} if known.begins(topic, last) else last.inputs.get(topic, {})
            since = known.recreated.get(topic, (0, 0, ""))[2]
            begins = known.starts.get(topic, {}) if source.starting else {}
            for p, end, own in partitions_of(self.settings, self.table, topic, read, since):
                first = max(on_broker[topic].first.get(p, 0), begins.get(p, 0))
                place = (topic, int(p), min(first, end), end)
                checked.append(_compared(self.reader.reading, source, place, own))
            again = readings.again(*last.readings.get(topic, ("", "")))
            if read and again:
                examples = "; ".join(filter(None, (checked[-1].examples, again)))
                checked[-1] = replace(checked[-1], examples=examples)
            yield from checked

    def unreadable(self, session: Session) -> list[str]:
        topics = [topic for topic in self.reader.declared.values() if topic.of_registry]
        try:
            refusals = (schemas.refusal(session, self.table, topic) for topic in topics)
            return list(filter(None, refusals))
        except SettingsError as err:
            return [str(err)]


def _compared(
    settings: Settings, source: RecordSource, place: tuple[str, int, int, int], own: "np.ndarray"
) -> Checked:
    """Compares a partition's offsets with those that the table has; what it lacks is read from the broker.

    Among changes of a database, a message that is no change is not missing either.
    """
    import numpy as np

    topic, partition, start, end = place
    absent = np.setdiff1d(np.arange(start, end), own)
    delivered = _delivered(settings, topic, partition, absent) if len(absent) else {}
    passed_over = {o for o, no_change in delivered.items() if source.keys and no_change}
    there = np.array(sorted(delivered.keys() - passed_over), np.int64)
    return replace(compared(place, own, there), passed_over=len(passed_over))


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
