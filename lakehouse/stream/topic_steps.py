"""The steps of an ingest table: a range of offsets each, from where the table's last commit ends to where the topics end.

A short range is what the broker has handed out meanwhile; a long one, as in a catch-up, is read by
Spark. Either way a step takes of every partition what was there when it was cut: which of them the
broker happens to answer first decides nothing.
"""

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame

from lakehouse.errors import BrokerError, DeclarationError, TopicError
from lakehouse.runtime.kafka_options import isolated
from lakehouse.storage import checkpoints
from lakehouse.storage.checkpoints import Written
from lakehouse.stream import offsets
from lakehouse.stream.advance import IDLE, LOOK, Source, Stepped, Take
from lakehouse.stream.micro_batch import StreamRun
from lakehouse.stream.offsets import Offsets
from lakehouse.stream.topic_reader import HELD, TopicReader
from lakehouse.transform import decode
from lakehouse.watermarks import Silence

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_log = logging.getLogger(__name__)

_HANDED_OUT = 10.0  # seconds for messages of a short range to come; then Spark reads it
_RECOVERED = 30.0  # seconds for a broker that has just started to have what was read of it
_RECORDS = 10_000  # of a step, to be worth a task of their own

Finish = Callable[[Written], None]
"""Writes what a step, whose rows are in the table, has not written yet."""


@dataclass(frozen=True, slots=True)
class Records:
    """What one step reads of its topics."""

    begin: Offsets
    end: Offsets
    rows: int
    quiet: timedelta | None = None  # so long no message came, which the table is to know
    here: Mapping[str, pa.Table] | None = None  # by topic, if they are here already


class TopicSteps(Stepped[Records]):
    """Fills an ingest table from its topics.

    Raises TopicError, CommitError or DeclarationError if it cannot go on from the table's last
    commit. A broker that does not answer is waited for, unless the query is to end at the present.
    """

    def __init__(
        self,
        run: StreamRun,
        take: Take,
        finish: Finish,
        *,
        quiet_timeout: timedelta = timedelta(0),
        available_now: bool = False,
        pace: timedelta = timedelta(0),
    ) -> None:
        super().__init__(run, take, available_now=available_now, pace=pace)
        self._finish = finish
        self._silence = Silence(quiet_timeout.total_seconds(), time.monotonic())
        self._topics = sorted(source.topic for source in run.plan.topics.values())
        # all its topics have the same
        isolation = next(source.isolation for source in run.plan.topics.values())
        self._reading = isolated(run.lake.settings, isolation)
        # an embedded broker has no address as long as it does not run
        self._client: AdminClient | None = None
        self._reader: TopicReader | None = None  # once the thread runs
        self._until: Offsets | None = None
        self._ends: Offsets = {}  # of the topics, as they were asked for last
        # when they were, and when they last reached as far as the table has read
        self._looked = self._sound = time.monotonic()
        self._begins: Offsets | None = None
        try:
            self._begins = self._begun()
        except BrokerError:
            if available_now:
                raise

    def _begun(self) -> Offsets:
        """Where the table goes on to read, by the broker and its own last commit."""
        run = self.run
        self._client = self._client or offsets.admin(run.lake.settings)
        last = checkpoints.standing(run.lake.settings, run.table).last
        if last and set(last.inputs) != set(self._topics):
            raise DeclarationError(
                f"table={self.name}, topics={', '.join(self._topics)}: it was filled from {', '.join(sorted(last.inputs))}, and "
                "an ingest table keeps the topics that it began with; declare the others in one of another name, or take "
                "the change back"
            )
        return offsets.start(run.lake.settings, run.table, self._topics, last)

    def _resumed(self) -> tuple[Offsets, int]:
        settings, table = self.run.lake.settings, self.run.table
        while self._begins is None and not self._stopping.wait(2 * LOOK):
            try:
                self._begins = self._begun()
                self.trouble = ""
            except BrokerError as err:
                self._say(f"{err}; it waits for the broker")
        if self._begins is None:
            return {}, 0  # it is stopped
        self._reader, self._at = (
            TopicReader(self._reading, self.name, settings.step_rows),
            self._begins,
        )
        standing = checkpoints.standing(settings, table)
        if pending := standing.pending:
            self.in_flight = (
                pending.batch,
                f"batch {pending.batch}, offsets to {json.dumps(pending.inputs)}",
            )
            self._finish(pending)
            self.in_flight = None
        if self.available_now:
            self._until = self._asked()
        return self._at, standing.last.batch + 1 if standing.last else 0

    @property
    def _messages(self) -> TopicReader:
        """What reads the topics: it is there once the thread runs."""
        assert self._reader is not None
        return self._reader

    def _next(self) -> Records | None:
        quiet = time.monotonic()
        while not self._stopping.is_set():
            self._wait_for_messages()
            if (piece := self._cut()) is not None:
                self._silence.broken(time.monotonic())
                return piece
            if self.trouble:  # nobody knows what has come meanwhile
                self._silence.broken(time.monotonic())
            elif (passed := self._silence.passed(time.monotonic())) and self._may_go_on():
                return self._quiet(timedelta(seconds=passed))
            if self._until is not None and self._is_past(self._until):
                return None
            if not self.trouble:
                self._idle.set()
                if time.monotonic() - quiet > IDLE:
                    quiet = float("inf")
                    self._report_idle()
        return None

    def _may_go_on(self) -> bool:
        """Whether there is an event time that could go on; a query that is to end at the present does not wait for that."""
        last = None if self.available_now else next(self.run.commit_log.by_stream(), None)
        return last is not None and bool(last.heads)

    def _quiet(self, passed: timedelta) -> Records:
        """A step without messages, by which event time goes on."""
        none = dict.fromkeys(self._topics, HELD.empty_table())
        return Records(self._at, self._at, 0, passed, none)

    def _wait_for_messages(self) -> None:
        """Returns when the next step is due and a message has come, or when it is time to ask the broker again."""
        while (
            not self._is_asked_for
            and (wait := self._began + self.pace.total_seconds() - time.monotonic()) > 0
        ):
            if self._messages.is_placed:
                self._messages.gather(min(wait, LOOK))
            else:
                self._stopping.wait(min(wait, LOOK))
        while self._messages.is_placed and not self._messages.has_news and not self._is_asked_for:
            now = time.monotonic()
            if now - self._looked > IDLE or self._silence.is_due(now):
                return
            self._messages.wait(LOOK)

    @property
    def _is_asked_for(self) -> bool:
        """Whether someone waits for what is there now."""
        return self.available_now or self._hurried.is_set() or self._stopping.is_set()

    def _cut(self) -> Records | None:
        """The next range that is there whole.

        None if there is nothing to read, or the broker does not answer.
        """
        self._looked = time.monotonic()
        try:
            self._ends = self._asked()
        except BrokerError as err:
            if self.available_now:
                raise
            self._say(f"{err}; it waits for the broker")
            self._stopping.wait(2 * LOOK)
            return None
        if self._is_beyond():
            self._stopping.wait(2 * LOOK)
            return None
        self.trouble = ""
        settings = self.run.lake.settings
        ends = _up_to(self._ends, self._until) if self._until else self._ends
        end = _limited(self._at, ends, settings.max_offsets_per_trigger)
        rows = _between(self._at, end)
        if rows:
            self._idle.clear()
        if rows > settings.step_rows:
            self._messages.lift()
            return Records(self._at, end, rows)
        if not self._messages.is_placed:
            self._messages.place(self._at)
        if not rows:
            return None
        here = self._handed_out(end)
        if here is None:
            self._messages.lift()
            return Records(self._at, end, rows)
        if not (count := sum(each.num_rows for each in here.values())):
            self._at = end  # what lies between are marks of transactions, or was compacted away
            return None
        return Records(self._at, end, count, here=here)

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
        described = offsets.ids(self._client, self._topics)
        ids = {topic: identity for topic, (identity, _) in described.items()}
        offsets.check_ids(self.run.lake.settings, self.run.table, ids)
        partitions = {topic: numbers for topic, (_, numbers) in described.items()}
        if any(
            str(p) not in self._at.get(topic, {})
            for topic, numbers in partitions.items()
            for p in numbers
        ):
            there = offsets.on_broker(self._client, self._topics)
            self._at = {
                topic: {**each.first, **self._at.get(topic, {})} for topic, each in there.items()
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

    def _rows(self, piece: Records) -> tuple[DataFrame, Collection[int]]:
        """What the step takes (`StreamRun.judged`)."""
        lake, plan, here = self.run.lake, self.run.plan, piece.here
        if here is not None:
            return self.run.judged({name: here[of.topic] for name, of in plan.topics.items()})
        records = {
            name: decode.topic_rows(
                lake.spark, lake.settings, of, piece.begin.get(of.topic), piece.end
            )
            for name, of in plan.topics.items()
        }
        # each task writes a file, and all that reads the table opens it
        tasks, partitions = 1 + piece.rows // _RECORDS, sum(map(len, piece.end.values()))
        judged, unknown = self.run.judged(records)
        return judged.coalesce(tasks) if tasks < partitions else judged, unknown

    def _offset(self, position: Offsets) -> dict[str, Any]:
        return {topic: dict(partitions) for topic, partitions in position.items()}

    def _sources(self, position: Offsets) -> tuple[Source, ...]:
        return (Source(json.dumps(position), json.dumps(self._ends or position)),)

    def _latest(self) -> Offsets:
        self._client = self._client or offsets.admin(self.run.lake.settings)
        partitions = {
            topic: numbers
            for topic, (_, numbers) in offsets.ids(self._client, self._topics).items()
        }
        return offsets.ends(self._client, self._reading, partitions)

    def _is_past(self, position: Offsets) -> bool:
        return self._at is not None and not _between(self._at, position)

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _say(self, trouble: str) -> None:
        """On standard error, once until something else is amiss."""
        if trouble != self.trouble:
            _log.warning(f"table={self.name}: {trouble}")
        self.trouble = trouble


def _between(begin: Offsets, end: Offsets) -> int:
    """How many offsets lie between: of a partition that ends before where it begins none."""
    return sum(
        max(offset - begin.get(topic, {}).get(p, 0), 0)
        for topic, partitions in end.items()
        for p, offset in partitions.items()
    )


def _up_to(ends: Offsets, until: Offsets) -> Offsets:
    return {
        t: {p: min(end, until[t].get(p, end)) for p, end in partitions.items()}
        for t, partitions in ends.items()
    }


def _limited(begin: Offsets, end: Offsets, most: int) -> Offsets:
    """The same share of what waits in each partition, at most so many in all, so that none gets ahead of the others."""
    if (waiting := _between(begin, end)) <= most:
        return end

    def limited(first: int, last: int) -> int:
        return first + max((last - first) * most // waiting, min(last - first, 1))

    return {
        t: {p: limited(begin[t][p], offset) for p, offset in parts.items()}
        for t, parts in end.items()
    }
