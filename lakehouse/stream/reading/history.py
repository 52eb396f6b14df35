"""A topic after its history, read for an ingest table: the history to its end, the cut, then the topic.

    history   records of its files or versions; no watermark, so that none of them is late
    cut       a commit without rows: all before the instant is there, and the watermark is that instant
    topic     from the offsets that were resolved before the first step and are in each commit

The last commit says in which of the three the table is: its watermark is before the instant until the cut.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame

from lakehouse.errors import LakehouseError, SourceError
from lakehouse.storage.foreign import foreign_sources
from lakehouse.storage.foreign.foreign_contract import ForeignFiles
from lakehouse.storage.foreign.foreign_files import Away
from lakehouse.storage.foreign.foreign_records import PARTITION
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import checkpoints
from lakehouse.storage.position.checkpoints import Written
from lakehouse.storage.session import Session
from lakehouse.stream.reading import offset_ranges, offsets, topic_starts
from lakehouse.stream.reading.checked import Checked, SourceCheck
from lakehouse.stream.reading.contract import TURN, Frames, Looks, Present, Reader, Records
from lakehouse.stream.reading.files import FileCheck, Files
from lakehouse.stream.reading.offsets import Gap, Offsets
from lakehouse.stream.reading.records import HELD
from lakehouse.stream.reading.topics import TopicCheck, Topics

_AGAIN = 60.0  # seconds between two looks at a history that was read
_SHARE = 10  # after a look, the least pause until the next one, in durations of the look


class Unfinished(LakehouseError):
    """The error of a history of which a part cannot be read as it is; the topic is not read before it."""


class History(Reader):
    """The reader of a history and, after the cut, its topic: two readers, of which one reads now."""

    AWAY = (*Files.AWAY, *Topics.AWAY, Unfinished)

    def __init__(self, past: Files, topic: Topics) -> None:
        super().__init__(
            past.settings, past.table, [*past.sources.values(), *topic.sources.values()]
        )
        self.past, self.topic = past, topic
        self._now: Reader = past
        self.reads_history = True
        self.looks = past.looks
        self._watched: ForeignFiles | None = None  # once it is read
        self.looks_back = Looks(_AGAIN, _SHARE)

    def begins(self, last: Written | Commit | None) -> Offsets:
        self.past.query = self.topic.query = self.query
        begins = {**self.topic.begins(last), **self.past.begins(last)}
        if last and topic_starts.is_history_read(self.past.source, last):
            self._end_history()
        return begins

    def _end_history(self) -> None:
        self.past.close()
        self.reads_history = False
        self._now, self.looks, self.trouble = self.topic, self.topic.looks, ""
        self._watched = foreign_sources.files_of(self.past.source, self.past.register)

    def latest_offset(self, at: Offsets) -> Offsets:
        if self._watched is not None and self.looks_back.is_due:
            with self.looks_back.look():
                self.remark = self._watched.look()
        ends = self._now.latest_offset(offset_ranges.part(at, self._now.sources))
        self.trouble = self._now.trouble
        return {**at, **ends}

    def earliest_offset(self, ends: Offsets) -> Offsets:
        return self._now.earliest_offset(ends)

    def read(self, begin: Offsets, end: Offsets) -> Records:
        now = self._now.sources
        read = self._now.read(offset_ranges.part(begin, now), offset_ranges.part(end, now))
        read = replace(read, begin={**begin, **read.begin}, end={**begin, **read.end})
        if not self.reads_history or read.rows or not _is_all_read(self.past, read.end):
            return read
        last = checkpoints.standing(self.settings, self.table).last
        at = {**self.topic.begins(last), **offset_ranges.part(read.end, now)}
        self._end_history()
        (topic,) = self.topic.declared.values()
        return Records(at, at, 0, here={topic.address: HELD.empty_table()}, cut=topic.starting)

    def reread(self, session: Session, begin: Offsets, end: Offsets, at: datetime) -> Frames:
        """Reads the ranges of both sources, or of the one that has something in its range."""
        both = (self.past, self.topic)
        some = [
            each
            for each in both
            if offset_ranges.between(begin, offset_ranges.part(end, each.sources))
        ]
        read: dict[str, DataFrame | pa.Table] = {}
        for reader in some or [self.topic]:
            read |= reader.reread(session, begin, end, at)
        return read

    def present(self) -> Present:
        """Returns what the topic has now; before the cut, all is read once the rest of the history is for the next run."""
        of_topic = self.topic.present()

        def is_read(at: Offsets) -> bool:
            if not self.reads_history:
                return of_topic.is_read(at)
            more = at[self.past.address][PARTITION] < self.past.register.end
            if more or not self.query.available_now:
                return False
            return self.past.present().is_read(at)

        return Present(of_topic.ends, is_read)

    def away(self, err: LakehouseError) -> tuple[str, float]:
        if isinstance(err, Unfinished):
            return str(err), TURN
        return (self.past if isinstance(err, Files.AWAY) else self.topic).away(err)

    def wait(self, seconds: float, *, to_the_end: bool = False) -> bool:
        return self._now.wait(seconds, to_the_end=to_the_end)

    def explained(self, err: BaseException, at: Offsets) -> BaseException:
        return self.topic.explained(err, offset_ranges.part(at, self.topic.sources))

    def close(self) -> None:
        self.topic.close()
        self.past.close()


def _is_all_read(past: Files, at: Offsets) -> bool:
    """Returns True if all that a history has now is read.

    Raises Unfinished, or SourceError in a query up to the present, if it is not whole.
    """
    try:
        present = past.feed.present()
    except Away:  # the next look says so
        return False
    amiss = past.refused
    if not past.register.files and present == []:
        amiss = (
            f"path={past.address}: no file of the history is there, and a folder whose disk is not mounted looks like "
            "that; check path and pattern, or leave history= out"
        )
    if amiss and past.query.available_now:
        raise SourceError(f"table={past.table.name}, {amiss}")
    if amiss:
        raise Unfinished(f"{amiss}; the topic is read when the history is")
    number = at[past.address][PARTITION]
    return number >= past.register.end and past.feed.has_read(present, number)


class HistoryCheck(SourceCheck[History]):
    """The check of a history and its topic."""

    def __init__(self, reader: History) -> None:
        super().__init__(reader)
        self._past, self._topic = FileCheck(reader.past), TopicCheck(reader.topic)

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
