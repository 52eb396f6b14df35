"""The steps of an ingest table that reads topics.

A short range is what the broker has handed out meanwhile; a long one, as in a catch-up, is read by
Spark. Either way a step takes of every partition what was there when it was cut: which of them the
broker happens to answer first decides nothing.
"""

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.errors import AccessError, BrokerError, LakehouseError, TopicError
from lakehouse.runtime import kafka_client, kafka_in_spark, kafka_topics
from lakehouse.runtime.kafka_options import isolated
from lakehouse.stream.advance import IDLE, LOOK, Take
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.reading import offset_ranges, offsets, readings
from lakehouse.stream.reading.offsets import Offsets
from lakehouse.stream.reading.source_steps import Finish, Records, SourceSteps
from lakehouse.stream.reading.topic_reader import TopicReader

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_log = logging.getLogger(__name__)

_HANDED_OUT = 10.0  # seconds for messages of a short range to come; then Spark reads it
_RECOVERED = 30.0  # seconds for a broker that has just started to have what was read of it


class TopicSteps(SourceSteps):
    """Fills an ingest table from its topics.

    Raises TopicError, CommitError or DeclarationError if it cannot go on from the table's last
    commit, AccessError if the broker turns it away. A broker that does not answer is waited for,
    unless the query is to end at the present.
    """

    def __init__(self, run: StreamRun, take: Take, finish: Finish, **how: Any) -> None:
        super().__init__(run, take, finish, **how)
        topics = [s for s in run.plan.sources.values() if isinstance(s, KafkaSource)]
        self._topics = sorted(source.address for source in topics)
        isolation = topics[0].isolation  # all of them have the same
        self._reading = isolated(run.session.settings, isolation)
        # an embedded broker has no address as long as it does not run
        self._client: AdminClient | None = None
        self._reader: TopicReader | None = None  # once the thread runs
        self._until: Offsets | None = None
        # when the topics last reached as far as the table has read
        self._sound = time.monotonic()
        self._begins: Offsets | None = None
        try:
            self._begins = self._begun()
        except (AccessError, BrokerError):
            if self.available_now:
                raise  # else the thread asks again, and says so

    def _begun(self) -> Offsets:
        """Where the table goes on to read, by the broker and its own last commit."""
        run = self.run
        self._client = self._client or kafka_topics.admin(run.session.settings)
        return offsets.start(run.session.settings, run.table, self._topics, self._last())

    def _resumed(self) -> tuple[Offsets, int]:
        settings = self.run.session.settings
        while self._begins is None and not self._stopping.is_set():
            try:
                self._begins = self._begun()
                self._is_over()
            except BrokerError as err:
                self._wait_for_broker(err)
        if self._begins is None:
            return {}, 0  # it is stopped
        sources = self.run.plan.sources.values()
        with_headers = {source.address for source in sources if source.headers}
        self._reader, self._at = (
            TopicReader(self._reading, self.name, settings.step_rows, with_headers),
            self._begins,
        )
        number = self._finished()
        if self.available_now:
            self._until = self._asked()
        self._look_at_readings()
        return self._at, number

    @property
    def _messages(self) -> TopicReader:
        """What reads the topics: it is there once the thread runs."""
        assert self._reader is not None
        return self._reader

    def _wait(self) -> None:
        while not self._is_due:
            wait = max(self._due_in, 0)
            if self._messages.is_placed:
                self._messages.gather(min(wait, LOOK))
            else:
                self._stopping.wait(min(wait, LOOK))
        while self._messages.is_placed and not self._messages.has_news and not self._is_asked_for:
            now = time.monotonic()
            if now - self._looked > IDLE or self._silence.is_due(now):
                return
            self._messages.wait(LOOK)

    def _wait_for_broker(self, err: BrokerError) -> None:
        """Says what the broker did not answer. Raises it where only what is there now is to be read.

        Raises AccessError if it turns this client away: waiting does not mend that.
        """
        if self.available_now:
            raise err
        self._say(f"{err}; it waits for the broker")
        kafka_client.check_access(self._reading)
        self._stopping.wait(2 * LOOK)

    def _cut(self) -> Records | None:
        self._looked = time.monotonic()
        try:
            self._ends = self._asked()
        except BrokerError as err:
            self._wait_for_broker(err)
            return None
        self._messages.error = ""  # the broker has answered since
        if self._is_beyond():
            self._stopping.wait(2 * LOOK)
            return None
        self._is_over()
        settings = self.run.session.settings
        ends = offset_ranges.up_to(self._ends, self._until) if self._until else self._ends
        end = offset_ranges.limited(self._at, ends, settings.max_offsets_per_trigger)
        rows = offset_ranges.between(self._at, end)
        if rows:
            self._idle.clear()
        if rows > settings.step_rows:
            self._messages.lift()
            return Records(self._at, end, rows)
        if not self._messages.is_placed:
            self._messages.place(self._at)
        if not rows:
            return None
        by_topic = self._handed_out(end)
        if by_topic is None:
            self._messages.lift()
            return Records(self._at, end, rows)
        if not (count := sum(each.num_rows for each in by_topic.values())):
            self._at = end  # what lies between are marks of transactions, or was compacted away
            return None
        return Records(self._at, end, count, here=by_topic)

    def _handed_out(self, end: Offsets) -> Mapping[str, pa.Table] | None:
        """The messages before these offsets.

        None if they do not come, or are too many: Spark reads them, or says why.
        """
        deadline = time.monotonic() + _HANDED_OUT
        while not self._messages.has_all(end):
            if self._messages.is_full or self._stopping.is_set() or time.monotonic() > deadline:
                return None
            self._messages.gather(0.02)
        return self._messages.taken(end)

    def _asked(self) -> Offsets:
        """The ends of the topics; partitions that are new begin at their first offset.

        Raises BrokerError, TopicError.
        """
        described = kafka_topics.ids(self._client, self._topics)
        ids = {topic: identity for topic, (identity, _) in described.items()}
        offsets.check_ids(self.run.session.settings, self.run.table, ids)
        partitions = {topic: numbers for topic, (_, numbers) in described.items()}
        if any(
            str(p) not in self._at.get(topic, {})
            for topic, numbers in partitions.items()
            for p in numbers
        ):
            on_broker = offsets.on_broker(self._client, self._topics)
            self._at = {
                topic: {**each.first, **self._at.get(topic, {})}
                for topic, each in on_broker.items()
            }
            self._messages.lift()
        return offsets.ends(self._client, self._reading, partitions)

    def _is_beyond(self) -> bool:
        """Whether a topic ends before what was read of it. Raises TopicError if that lasts."""
        message, now = offsets.beyond(self.run.table, self._at, self._ends), time.monotonic()
        if not message:
            self._sound = now
        elif now - self._sound > _RECOVERED or self.available_now:
            raise TopicError(message)
        else:
            self._say(f"{message}; a broker that has just started may still recover it")
        return bool(message)

    def _latest(self) -> Offsets:
        self._client = self._client or kafka_topics.admin(self.run.session.settings)
        partitions = {
            topic: numbers
            for topic, (_, numbers) in kafka_topics.ids(self._client, self._topics).items()
        }
        return offsets.ends(self._client, self._reading, partitions)

    def _is_past(self, position: Offsets) -> bool:
        return self._at is not None and not offset_ranges.between(self._at, position)

    def _take(self, piece: Records, number: int, log: BatchLog) -> None:
        super()._take(piece, number, log)
        self._look_at_readings()

    def _look_at_readings(self) -> None:
        """Says once that a database's table was read again, and remarks it from then on."""
        if not any(source.keys for source in self.run.plan.sources.values()):
            return
        last = next(self.run.commit_log.by_stream(), None)
        remark = readings.remark(self.name, last.readings) if last else ""
        if remark and remark != self.remark:
            _log.warning(remark)
        self.remark = remark

    def _explained(self, err: BaseException) -> BaseException:
        """What Spark did not get of the broker, as our own client says it."""
        if isinstance(err, LakehouseError):
            return err
        refused: LakehouseError | None
        refused = kafka_in_spark.refusal(self._reading, self._topics, err)
        if refused is None and kafka_in_spark.is_loss(err):
            try:  # the broker is asked where the table goes on, which is not to be had any more
                self._begun()
                offsets.check_there(self._client, self.run.table, self._at or {})
            except LakehouseError as known:
                refused = known
        if refused is None:
            return err
        refused.__cause__ = err
        return refused

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
