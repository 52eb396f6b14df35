"""A topic after its history, read for an ingest table: the history to its end, the cut, then the topic.

    history   records of its files or versions; no watermark, so that none of them is late
    cut       a commit without rows: all before the instant is there, and the watermark is that instant
    topic     from the offsets that were resolved before the first step and are in each commit

The last commit says in which of the three the table is: its watermark is before the instant until the cut.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from threading import Event

import pyarrow as pa
from pyspark.sql import DataFrame

from lakehouse.errors import LakehouseError, SourceError
from lakehouse.storage.foreign import foreign_sources
from lakehouse.storage.foreign.foreign_contract import ForeignFiles
from lakehouse.storage.foreign.foreign_files import Away
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import checkpoints
from lakehouse.storage.position.checkpoints import Written
from lakehouse.storage.session import Session
from lakehouse.stream.reading import offset_ranges, offsets, topic_starts
from lakehouse.stream.reading.checked import Checked
from lakehouse.stream.reading.contract import Frames, Reader, Records, Say
from lakehouse.stream.reading.files import Files
from lakehouse.stream.reading.offsets import Gap, Offsets
from lakehouse.stream.reading.records import HELD
from lakehouse.stream.reading.topics import Topics

_AGAIN = 60.0  # seconds between two looks at a history that was read
_SHARE = 10  # after a look, the least pause until the next one, in durations of the look


class Unfinished(LakehouseError):
    """The error of a history of which a part cannot be read as it is; the topic is not read before it."""


class History(Reader):
    """The reader of a history and, after the cut, its topic."""

    AWAY = (*Files.AWAY, *Topics.AWAY, Unfinished)

    def __init__(self, past: Files, topic: Topics) -> None:
        super().__init__(
            past.settings, past.table, [*past.sources.values(), *topic.sources.values()]
        )
        self._past, self._topic = past, topic
        (self._source,) = topic.declared.values()
        self.reads_history = True
        self._watched: ForeignFiles | None = None  # once it is read
        self._look_at = 0.0  # when it is looked at again

    def attend(self, stopping: Event, *, available_now: bool) -> None:
        super().attend(stopping, available_now=available_now)
        self._past.attend(stopping, available_now=available_now)
        self._topic.attend(stopping, available_now=available_now)

    @property
    def _now(self) -> Reader:
        return self._past if self.reads_history else self._topic

    def _part(self, of: Reader, at: Offsets) -> Offsets:
        return {address: at[address] for address in of.sources if address in at}

    def begins(self, last: Written | Commit | None) -> Offsets:
        found = self._begin_topic(last)
        begins = {**found, **self._past.begins(last)}
        if last and topic_starts.is_history_read(self._past.source, last):
            self._end_history()
        return begins

    def _begin_topic(self, last: Written | Commit | None) -> Offsets:
        starts = (
            topic_starts.resolve(self.settings, self.table, self._source) if last is None else {}
        )
        return self._part(self._topic, self._topic.begins(last, starts))

    def _end_history(self) -> None:
        assert self._source.starting is not None, self.table.name
        self._past.close()
        self.reads_history, self.watermark = False, self._source.starting
        self._watched = foreign_sources.files_of(self._past.source, self._past.register)

    def latest_offset(self, at: Offsets) -> Offsets:
        self._look_back()
        return {**at, **self._now.latest_offset(self._part(self._now, at))}

    def _look_back(self) -> None:
        """Looks whether the history was changed since it was read."""
        started = time.monotonic()
        if self._watched is None or started < self._look_at:
            return
        self.remark = self._watched.look()
        now = time.monotonic()
        self._look_at = now + max(_AGAIN, _SHARE * (now - started))

    def earliest_offset(self, ends: Offsets) -> Offsets:
        return {**self._past.earliest_offset(ends), **self._topic.earliest_offset(ends)}

    def next_range(self, at: Offsets, ends: Offsets, until: object) -> tuple[Offsets, Offsets]:
        parts = self._part(self._now, at), self._part(self._now, ends)
        begin, end = self._now.next_range(*parts, until)
        return {**at, **begin}, {**at, **end}

    def read(self, begin: Offsets, end: Offsets) -> Records:
        read = self._now.read(self._part(self._now, begin), self._part(self._now, end))
        read = replace(read, begin=begin, end={**begin, **read.end})
        if not self.reads_history or read.rows or not self._is_all_read(read.end):
            return read
        last = checkpoints.standing(self.settings, self.table).last
        at = {**read.end, **self._begin_topic(last)}
        self._end_history()
        none = {self._source.address: HELD.empty_table()}
        return Records(at, at, 0, here=none, is_cut=True)

    def _is_all_read(self, at: Offsets) -> bool:
        """Returns True if all that is there now is read. Raises Unfinished, or SourceError in a query up to the present."""
        try:
            present = self._past.feed.present()
        except Away:  # the next look says so
            return False
        amiss = "; ".join(self._past.feed.refused)
        if not self._past.register.files and present == []:
            amiss = (
                f"path={self._past.address}: no file of the history is there, and a folder whose disk is not mounted looks like "
                "that; check path and pattern, or leave history= out"
            )
        if amiss and self.available_now:
            raise SourceError(f"table={self.table.name}, {amiss}")
        if amiss:
            raise Unfinished(f"{amiss}; the topic is read when the history is")
        number = self._past.number(at)
        return number >= self._past.register.end and self._past.feed.has_read(present, number)

    def reread(self, session: Session, begin: Offsets, end: Offsets, at: datetime) -> Frames:
        """Reads the ranges of both sources, or of the one that has something in its range."""
        both = (self._past, self._topic)
        some = [
            each
            for each in both
            if offset_ranges.between(begin, {t: end[t] for t in each.sources if t in end})
        ]
        read: dict[str, DataFrame | pa.Table] = {}
        for each in some or [self._topic]:
            read |= each.reread(session, begin, end, at)
        return read

    def present(self) -> object:
        return self._topic.present()

    def has_read(self, present: object, at: Offsets) -> bool:
        """Returns True if all is read; in the history, if a query up to the present leaves the rest for the next run."""
        if not self.reads_history:
            return self._topic.has_read(present, at)
        if not self.available_now or self._past.has_news(at, {}) or self._past.is_away:
            return False
        return self._past.has_read(self._past.present(), at)

    def wait_out(self, err: LakehouseError, say: Say) -> None:
        if isinstance(err, Unfinished):
            say(str(err))
        else:
            away = self._past if isinstance(err, Files.AWAY) else self._topic
            away.wait_out(err, say)

    def rest(self, seconds: float) -> None:
        self._now.rest(seconds)

    def wait(self, seconds: float) -> None:
        self._now.wait(seconds)

    def has_news(self, at: Offsets, ends: Offsets) -> bool:
        return self._now.has_news(at, ends)

    @property
    def is_to_look(self) -> bool:
        return self._now.is_to_look

    def trouble(self) -> str:
        return self._now.trouble()

    def explained(self, err: BaseException, at: Offsets) -> BaseException:
        return self._topic.explained(err, self._part(self._topic, at))

    def close(self) -> None:
        self._topic.close()
        self._past.close()

    def lost(self, last: Commit | None) -> list[Gap]:
        if last:
            return self._topic.lost(last)
        # the topic must reach back to its history
        accepted = offsets.known(self.settings, self.table).gaps
        return topic_starts.removed(self._topic.found(), accepted)

    def verify(self, last: Commit) -> Iterator[Checked]:
        yield from self._past.verify(last)
        yield from self._topic.verify(last)

    def unreadable(self, session: Session) -> list[str]:
        return self._topic.unreadable(session)
