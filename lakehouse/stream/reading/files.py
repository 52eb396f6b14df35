"""A folder, or a table of others, read for an ingest table.

New files are registered (`storage.foreign`), and the records of registered files are read in order: a source of one
partition, whose offsets are the numbers of its records.
"""

import logging
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import cast

import pyarrow as pa

from lakehouse.declare.inputs.sources import FilesSource, RecordSource
from lakehouse.declare.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.storage.foreign import file_register, foreign_sources
from lakehouse.storage.foreign.file_register import Register, Registered
from lakehouse.storage.foreign.foreign_contract import Feed, ForeignFiles
from lakehouse.storage.foreign.foreign_files import Away, Gone
from lakehouse.storage.foreign.foreign_records import PARTITION, RECORDS, RecordReader
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import checkpoints
from lakehouse.storage.position.checkpoints import Written
from lakehouse.storage.session import Session
from lakehouse.stream.advance import LOOK
from lakehouse.stream.reading import offsets, records
from lakehouse.stream.reading.checked import Checked, SourceCheck, compared, partitions_of
from lakehouse.stream.reading.contract import TURN, Frames, Looks, Present, Reader, Records
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
    feed: Feed  # once it is known where the table goes on

    def __init__(self, settings: Settings, table: Table, sources: Collection[RecordSource]) -> None:
        super().__init__(settings, table, sources)
        ((self.address, source),) = self.sources.items()
        self.source = cast(FilesSource, source)
        self.register = Register(settings, table)
        self.files = foreign_sources.files_of(self.source, self.register)
        self.looks = Looks(LOOK, _SHARE)
        self._records = RecordReader(self.files)
        self._gaps: list[Gap] = []
        self._gone_since: float | None = None
        self._began = time.monotonic()
        self._said_unsettled = False

    def begins(self, last: Written | Commit | None) -> Offsets:
        self._gaps = gaps = offsets.known(self.settings, self.table).gaps_of(self.address)
        if last is None:  # the register may be that of a table that has been removed
            self.register.restart()
        begins = offsets.behind(self.settings, self.table, last, _position(self.address, 0))
        number, end = begins[self.address][PARTITION], self.register.end
        if number > end:
            what = f"it has {end:,} of them, and the table has read {number:,}"
            raise file_register.damaged(self.register, what)
        if number < end and self.register.of_record(number) is None:
            what = f"it has forgotten the files behind record {number:,}, where the table goes on"
            raise file_register.damaged(self.register, what)
        columns = of_ddl(self.source.schema)
        types = {each.name: each.dataType.simpleString() for each in columns}

        def is_lost(known: Registered) -> bool:
            return any(gap.since < known.end and known.first < gap.until for gap in gaps)

        self.feed = self.files.feed(is_lost, types)
        self._began = time.monotonic()
        return _position(self.address, number)

    def latest_offset(self, at: Offsets) -> Offsets:
        """Registers what has come, if all is read, or it is time to look. Raises Away, SourceError."""
        read = at[self.address][PARTITION]
        if read >= self.register.end or self.looks.is_due:
            with self.looks.look():
                self.feed.look(read, self.settings.max_offsets_per_trigger)
                # while enough is registered, a look passes over the name that a file has now
                if self._gone_since is not None:
                    self.files.follow_renames()
            self.refused, self.trouble = map("; ".join, (self.feed.refused, self.feed.remarks))
        return _position(self.address, self.register.end)

    def earliest_offset(self, ends: Offsets) -> Offsets:
        return _position(self.address, 0)

    def read(self, begin: Offsets, end: Offsets) -> Records:
        """Reads records that nobody has accepted as lost."""
        number, last = begin[self.address][PARTITION], end[self.address][PARTITION]
        number, last = next(offsets.outside(self._gaps, number, last), (last, last))
        rows = self._records.read(number, last)
        if rows.num_rows:
            self._gone_since = None
        begin = _position(self.address, number)
        read = _position(self.address, number + rows.num_rows)
        return Records(begin, read, rows.num_rows, here={self.address: rows})

    def reread(self, session: Session, begin: Offsets, end: Offsets, at: datetime) -> Frames:
        """Reads a range again, also from files that were renamed since. Raises SourceError."""
        first = begin.get(self.address, {}).get(PARTITION, 0)
        ranges = list(offsets.outside(self._gaps, first, end[self.address][PARTITION]))
        try:
            rows = _read_whole(self.files, ranges)
        except Gone:
            if not self.files.follow_renames():
                raise
            rows = _read_whole(self.files, ranges)
        count = sum(until - since for since, until in ranges)
        assert rows.num_rows == count, "a step ends where the columns of its rows change"
        return {self.address: records.held(session, rows)}

    def away(self, err: LakehouseError) -> tuple[str, float]:
        """Returns what to report. Raises Gone for a file that is not there under another name either after a while."""
        pause = max(TURN, self.looks.due_in)
        if not isinstance(err, Gone):
            if self.query.available_now:
                raise err
            return f"{err}; it is waited for", pause
        now = time.monotonic()
        self._gone_since = now if self._gone_since is None else self._gone_since
        if not self.files.may_rename or now - self._gone_since > self.files.settle + _RENAMED:
            raise err
        return f"{err}; it may have been renamed, which is looked for", pause

    def present(self) -> Present:
        return Present({}, partial(self._has_read, self.feed.present()))

    def _has_read(self, present: object, at: Offsets) -> bool:
        number = at[self.address][PARTITION]
        if self.feed.has_read(present, number):
            return True
        if not self.query.available_now or number < self.register.end:
            return False
        if time.monotonic() - self._began < self.files.settle + _SETTLED:
            return False
        if not self._said_unsettled:
            self._said_unsettled = True
            _log.warning(
                f"table={self.table.name}, path={self.address}: files in it do not stand still and are left for the next run"
            )
        return True

    def close(self) -> None:
        self._records.close()


def _position(address: str, number: int) -> Offsets:
    """Returns the position before the record of this number."""
    return {address: {PARTITION: number}}


def _read_whole(files: ForeignFiles, ranges: list[tuple[int, int]]) -> pa.Table:
    with closing(RecordReader(files)) as reader:
        pieces = [reader.read(since, until, _EVERY) for since, until in ranges]
    return pa.concat_tables(pieces) if pieces else RECORDS.empty_table()


class FileCheck(SourceCheck[Files]):
    """The check of a folder, or a table of others, with the register, whose records have all been there."""

    def lost(self, last: Commit | None) -> list[Gap]:
        if checkpoints.standing(self.settings, self.table).last is None:
            return []
        begins = offsets.behind(self.settings, self.table, last, _position(self.reader.address, 0))
        return [
            Gap(self.reader.address, PARTITION, *each)
            for each in foreign_sources.lost(
                self.reader.files, begins[self.reader.address][PARTITION]
            )
        ]

    def verify(self, last: Commit) -> Iterator[Checked]:
        import numpy as np

        read = {PARTITION: last.inputs.get(self.reader.address, {}).get(PARTITION, 0)}
        gaps = offsets.known(self.settings, self.table).gaps_of(self.reader.address)
        for p, end, own in partitions_of(self.settings, self.table, self.reader.address, read):
            there = [np.arange(*span) for span in offsets.outside(gaps, 0, end)]
            if is_history_read(self.reader.source, last):
                more = list(filter(None, [self.reader.files.look()]))
            else:
                more = foreign_sources.unread(self.reader.files, end)
            place = (self.reader.address, int(p), 0, end)
            yield compared(place, own, np.concatenate([own[:0], *there]), self._shown, more)

    def _shown(self, number: int) -> str:
        file = self.reader.register.of_record(number)
        if file is None:
            return f"{number} (record of a file that was forgotten)"
        return f"{number} (record {number - file.first + 1} of {file.path})"
