"""The steps of an ingest table whose topic has a history: the history to its end, the cut, then the topic.

    history   records of its files or versions; no watermark, so that none of them is late
    cut       a commit without rows: all before the instant is there, and the watermark is that instant
    topic     from the offsets on that were resolved before the first step and are in each commit

The last commit says in which of the three the table is: its watermark is before the instant until the cut.
"""

import logging
import time
from dataclasses import replace
from typing import Any

from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.errors import BrokerError, SourceError
from lakehouse.runtime import kafka_topics
from lakehouse.storage.foreign import foreign_sources
from lakehouse.storage.foreign.foreign_contract import ForeignFiles
from lakehouse.storage.foreign.foreign_files import Away
from lakehouse.storage.foreign.foreign_records import PARTITION
from lakehouse.storage.position import checkpoints
from lakehouse.stream.advance import Source, Take
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.reading import offsets, topic_starts
from lakehouse.stream.reading.file_steps import FileSteps
from lakehouse.stream.reading.offsets import Offsets
from lakehouse.stream.reading.records import HELD, file_sources
from lakehouse.stream.reading.source_steps import Finish, Records
from lakehouse.stream.reading.topic_steps import TopicSteps

_log = logging.getLogger(__name__)

_AGAIN = 60.0  # seconds until the history is looked at again once it was read
_SHARE = 10  # a look that takes long is followed by so many times as long without one


class HistorySteps(TopicSteps):
    """Fills an ingest table from the history of its topic, and then from the topic.

    Raises TopicError, CommitError or DeclarationError if it cannot go on from the table's last
    commit, or if the topic does not reach back to its history.
    """

    def __init__(self, run: StreamRun, take: Take, finish: Finish, **how: Any) -> None:
        (self._history,) = file_sources(run.plan.sources.values())
        (self._source,) = (s for s in run.plan.sources.values() if isinstance(s, KafkaSource))
        self._how: dict[str, Any] = how
        self._past: _Past | None = None  # until the history is read
        self._resting: Offsets = {}  # how far what is not read just now is
        self._afterwards: ForeignFiles | None = None
        self._look_at = 0.0  # when the history is looked at again
        super().__init__(run, take, finish, **how)

    def _begun(self) -> Offsets:
        settings, table, last = self.run.session.settings, self.run.table, self._last()
        begins = topic_starts.resolve(settings, table, self._source) if last is None else {}
        self._client = self._client or kafka_topics.admin(settings)
        found = offsets.start(settings, table, self._topics, last, begins)
        self._resting = {self._history.address: {PARTITION: 0}, **found}
        return {topic: found[topic] for topic in self._topics}

    def _resumed(self) -> tuple[Offsets, int]:
        begins, number = super()._resumed()
        if begins:  # it is not stopped
            past = _Past(self)
            last = checkpoints.standing(self.run.session.settings, self.run.table).last
            if last and topic_starts.is_history_read(self._history, last):
                self._afterwards = past.afterwards()
            else:
                self._past = past
        return begins, number

    def _next(self) -> Records | None:
        while self._past is not None:
            if (piece := self._past.piece()) is not None:
                return piece
            if not self._past.is_read:
                return None
            if (piece := self._cut_over(self._past)) is not None:
                return piece
        return super()._next()

    def _cut_over(self, past: "_Past") -> Records | None:
        """The step without rows that says that the history is read; None while the broker does not answer.

        Raises CommitError if the topic has lost what it was to go on with.
        """
        try:
            self._at = self._begun()
        except BrokerError as err:
            self._wait_for_broker(err)
            return None
        past.close()
        self._resting, self._past = past.position, None
        self._afterwards = past.afterwards()
        return Records(self._at, self._at, 0, here={self._source.address: HELD.empty_table()})

    def _take(self, piece: Records, number: int, log: BatchLog) -> None:
        if self._past is None:
            assert self._source.starting is not None, self.name
            log = replace(log, watermark=self._source.starting)
        super()._take(piece, number, log)

    def _offset(self, position: Offsets) -> dict[str, Any]:
        return super()._offset({**self._resting, **position})

    def _sources(self, position: Offsets) -> tuple[Source, ...]:
        if self._past is not None:
            return self._past._sources(position)
        return super()._sources(position)

    def _cut(self) -> Records | None:
        self._look_back()
        return super()._cut()

    def _look_back(self) -> None:
        """Has a look whether the history was changed since it was read."""
        started = time.monotonic()
        if self._afterwards is None or started < self._look_at:
            return
        remark = self._afterwards.look()
        if remark and remark != self.remark:
            _log.warning(f"table={self.name}, {remark}")
        self.remark = remark
        now = time.monotonic()
        self._look_at = now + max(_AGAIN, _SHARE * (now - started))

    def _close(self) -> None:
        super()._close()
        if self._past is not None:
            self._past.close()


class _Past(FileSteps):
    """Reads the history for these steps, until all that is there is read."""

    def __init__(self, of: HistorySteps) -> None:
        self._of = of
        super().__init__(of.run, of.take, of._finish, **of._how)
        self._stopping, self._hurried, self._idle = of._stopping, of._hurried, of._idle
        self._at = {self._topic: self._begins[self._topic]}
        self._began_at = time.monotonic()
        self.is_read = False

    @property
    def trouble(self) -> str:
        return self._of.trouble

    @trouble.setter
    def trouble(self, why: str) -> None:
        self._of.trouble = why

    @property
    def position(self) -> Offsets:
        return self._position(self._number)

    def piece(self) -> Records | None:
        """What is to be read next, waiting for it. None when it is read to its end, or this is to stop."""
        while not self._stopping.is_set():
            self._wait()
            if (piece := self._cut()) is not None:
                self._at = piece.end
                return piece
            self.is_read = not self._is_away and self._is_all_read()
            if self.is_read or self._leaves_the_rest():
                return None
        return None

    def afterwards(self) -> ForeignFiles:
        return foreign_sources.files_of(self._source, self._register)

    def close(self) -> None:
        self._close()

    def _is_read_again(self) -> None:
        """What the history waits for is said once: a look that finds all else well is no news."""

    def _is_all_read(self) -> bool:
        """Whether all that is there now is read. Raises SourceError of what cannot be, if the query is to end."""
        try:
            present = self._feed.present()
        except Away:  # the next look says so
            return False
        amiss = "; ".join(self._feed.refused)
        if not self._register.files and present == []:
            amiss = (
                f"path={self._topic}: no file of the history is there, and a folder whose disk is not mounted looks like that; "
                "check path and pattern, or leave history= out"
            )
        if amiss and self.available_now:
            raise SourceError(f"table={self.name}, {amiss}")
        if amiss:
            self._say(f"{amiss}; the topic is read when the history is")
            return False
        return self._number >= self._register.end and self._feed.has_read(present, self._number)

    def _leaves_the_rest(self) -> bool:
        """Whether a query up to the present leaves the rest for the next run."""
        if not self.available_now or self._number < self._register.end:
            return False
        return not self._is_away and self._is_past(self._latest())
