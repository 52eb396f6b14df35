"""A folder, or a table of others, read for an ingest table.

New files are registered (`storage.foreign`), and the records of registered files are read in order: a source of one
partition, whose offsets are the numbers of its records.
"""

import logging
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from datetime import datetime
from typing import cast

import pyarrow as pa

from lakehouse.declare.inputs.sources import FilesSource, RecordSource
from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError, SourceError
from lakehouse.settings import Settings
from lakehouse.storage.foreign import foreign_sources
from lakehouse.storage.foreign.file_register import Register, Registered
from lakehouse.storage.foreign.foreign_contract import Feed
from lakehouse.storage.foreign.foreign_files import Away, Gone
from lakehouse.storage.foreign.foreign_records import PARTITION, RECORDS, RecordReader
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import checkpoints
from lakehouse.storage.position.checkpoints import Written
from lakehouse.storage.session import Session
from lakehouse.stream.advance import LOOK
from lakehouse.stream.reading import offsets, records
from lakehouse.stream.reading.checked import Checked, compared, stored
from lakehouse.stream.reading.contract import TURN, Frames, Reader, Records, Say
from lakehouse.stream.reading.offsets import Gap, Offsets
from lakehouse.stream.reading.topic_starts import is_history_read
from lakehouse.transform.decoding.values import of_ddl

_log = logging.getLogger(__name__)

_SHARE = 10  # after a look, the least pause until the next one, in durations of the look
_SETTLED = 10.0  # seconds beyond `settle` for files to stand still, in a query up to the present
_RENAMED = 10.0  # seconds beyond `settle` in which a missing file must appear under another name
_EVERY = 1 << 62  # bytes


class Files(Reader):
    """The reader of a folder, or a table of others; it waits for a folder that is not there."""

    AWAY = (Away, Gone)

    def __init__(self, settings: Settings, table: Table, sources: Collection[RecordSource]) -> None:
        super().__init__(settings, table, sources)
        ((self.address, source),) = self.sources.items()
        self.source = cast(FilesSource, source)
        self.register = Register(settings, table)
        self.files = foreign_sources.files_of(self.source, self.register)
        self._records = RecordReader(self.files)
        self._gaps: list[Gap] = []
        self._following: Feed | None = None  # once it is known where the table goes on
        self.is_away = False  # the folder is not there, or a file that is to be read is not
        self._looked = float("-inf")
        self._took = 0.0  # seconds of the last look
        self._gone_since: float | None = None
        self._began = time.monotonic()
        self._said_unsettled = False

    @property
    def feed(self) -> Feed:
        assert self._following is not None, "it begins first"
        return self._following

    def position(self, number: int) -> Offsets:
        return {self.address: {PARTITION: number}}

    def number(self, at: Offsets) -> int:
        """Returns the number of the record that comes next."""
        return at[self.address][PARTITION]

    def begins(self, last: Written | Commit | None) -> Offsets:
        gaps = offsets.known(self.settings, self.table).gaps
        self._gaps = [gap for gap in gaps if gap.topic == self.address]
        if last is None:  # the register may be that of a table that has been removed
            self.register.restart()
        begins = offsets.behind(self.settings, self.table, last, self.position(0))
        if (number := self.number(begins)) > self.register.end:
            raise self.register.damaged(
                f"it has {self.register.end:,} of them, and the table has read {number:,}"
            )
        if number < self.register.end and not self.register.knows(number):
            raise self.register.damaged(
                f"it has forgotten the files behind record {number:,}, where the table goes on"
            )
        columns = of_ddl(self.source.schema)
        types = {each.name: each.dataType.simpleString() for each in columns}
        self._following = self.files.feed(self._is_lost, types)
        self._began = time.monotonic()
        return self.position(number)

    def _is_lost(self, known: Registered) -> bool:
        return any(gap.since < known.end and known.first < gap.until for gap in self._gaps)

    def latest_offset(self, at: Offsets) -> Offsets:
        if self.number(at) >= self.register.end or self.is_away or self.is_to_look:
            self._look(self.number(at))
        return self.position(self.register.end)

    def earliest_offset(self, ends: Offsets) -> Offsets:
        return self.position(0)

    def _look(self, read: int) -> None:
        """Registers what has come. Raises Away, SourceError."""
        started = time.monotonic()
        try:
            self.feed.look(read, self.settings.max_offsets_per_trigger)
            # while enough is registered, a look passes over the name that a file has now
            if self._gone_since is not None:
                self.files.follow_renames()
            self.is_away = False
        finally:
            self._looked = time.monotonic()
            self._took = self._looked - started

    @property
    def is_to_look(self) -> bool:
        """Returns True if it is time to look for new files: a folder of very many files is not looked at all the time."""
        return time.monotonic() - self._looked > max(LOOK, _SHARE * self._took)

    def has_news(self, at: Offsets, ends: Offsets) -> bool:
        return self.number(at) < self.register.end and not self.is_away

    def next_range(self, at: Offsets, ends: Offsets, until: object) -> tuple[Offsets, Offsets]:
        """Returns the range of the next step, without records that someone has accepted as lost."""
        begin, end = self.number(at), self.register.end
        end = min(end, begin + self.settings.max_offsets_per_trigger)
        for gap in sorted(self._gaps, key=lambda gap: gap.since):
            if gap.since <= begin < gap.until:
                begin = gap.until
            elif begin < gap.since:
                end = min(end, gap.since)
        return self.position(begin), self.position(max(begin, end))

    def read(self, begin: Offsets, end: Offsets) -> Records:
        if begin == end:
            return Records(begin, begin, 0)
        number = self.number(begin)
        rows = self._records.read(number, self.number(end))
        self._gone_since = None
        read = self.position(number + rows.num_rows)
        return Records(begin, read, rows.num_rows, here={self.address: rows})

    def reread(self, session: Session, begin: Offsets, end: Offsets, at: datetime) -> Frames:
        """Reads a range again, also from files that were renamed since. Raises SourceError."""
        first = begin.get(self.address, {}).get(PARTITION, 0)
        ranges = list(self._not_lost(first, self.number(end)))
        try:
            rows = self._read_whole(ranges)
        except Gone:
            if not self.files.follow_renames():
                raise
            rows = self._read_whole(ranges)
        count = sum(until - since for since, until in ranges)
        assert rows.num_rows == count, "a step ends where the columns of its rows change"
        return {self.address: records.held(session, rows)}

    def _read_whole(self, ranges: list[tuple[int, int]]) -> pa.Table:
        with closing(RecordReader(self.files)) as reader:
            pieces = [reader.read(since, until, _EVERY) for since, until in ranges]
        return pa.concat_tables(pieces) if pieces else RECORDS.empty_table()

    def _not_lost(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields the parts of a range of records that nobody has accepted as lost."""
        known = offsets.known(self.settings, self.table).gaps
        gaps = [gap for gap in known if gap.topic == self.address]
        for gap in sorted(gaps, key=lambda gap: gap.since):
            if begin < min(gap.since, end):
                yield begin, min(gap.since, end)
            begin = max(begin, gap.until)
        if begin < end:
            yield begin, end

    def wait_out(self, err: LakehouseError, say: Say) -> None:
        if isinstance(err, Gone):
            self._await_renamed(err)
            say(f"{err}; it may have been renamed, which is looked for")
        else:
            if self.available_now:
                raise err
            say(f"{err}; it is waited for")
        self.is_away = True
        self.stopping.wait(TURN)

    def _await_renamed(self, err: LakehouseError) -> None:
        """Waits for a file that may have another name by now. Raises Gone if that lasts."""
        now = time.monotonic()
        self._gone_since = now if self._gone_since is None else self._gone_since
        if not self.files.may_rename or now - self._gone_since > self.files.settle + _RENAMED:
            raise err

    def present(self) -> object:
        return self.feed.present()

    def has_read(self, present: object, at: Offsets) -> bool:
        number = self.number(at)
        if self.feed.has_read(present, number):
            return True
        if not self.available_now or number < self.register.end:
            return False
        if time.monotonic() - self._began < self.files.settle + _SETTLED:
            return False
        if not self._said_unsettled:
            self._said_unsettled = True
            _log.warning(
                f"table={self.table.name}, path={self.address}: files in it do not stand still and are left for the next run"
            )
        return True

    def ended(self) -> None:
        if refused := self.feed.refused:
            raise SourceError("; ".join(refused))

    def trouble(self) -> str:
        return "; ".join(self.feed.remarks)

    def close(self) -> None:
        self._records.close()

    def lost(self, last: Commit | None) -> list[Gap]:
        if checkpoints.standing(self.settings, self.table).last is None:
            return []
        begins = offsets.behind(self.settings, self.table, last, self.position(0))
        return [
            Gap(self.address, PARTITION, *each)
            for each in foreign_sources.lost(self.files, self.number(begins))
        ]

    def verify(self, last: Commit) -> Iterator[Checked]:
        """Compares the table with the register, whose records have all been there."""
        import numpy as np

        end = last.inputs.get(self.address, {}).get(PARTITION, 0)
        rows = stored(self.settings, self.table, self.address)
        own = rows.get(int(PARTITION), np.empty(0, np.int64))
        there = [np.arange(*each) for each in self._not_lost(0, end)]
        if is_history_read(self.source, last):
            more = list(filter(None, [self.files.look()]))
        else:
            more = foreign_sources.unread(self.files, end)
        place = (self.address, int(PARTITION), 0, end)
        yield compared(place, own, np.concatenate([own[:0], *there]), self._shown, more)

    def _shown(self, number: int) -> str:
        if not self.register.knows(number):
            return f"{number} (record of a file that was forgotten)"
        file = self.register.of_record(number)
        return f"{number} (record {number - file.first + 1} of {file.path})"
