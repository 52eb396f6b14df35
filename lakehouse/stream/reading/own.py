"""A source of one's own, read for an ingest table: its class is asked in the thread of the query.

Positions are like those of a topic: the next offset of each partition. Records are read before their step begins, so its
length is known, and a wrong answer of the class ends the query before anything of the step is written.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from typing import cast

import pyarrow as pa

from lakehouse.backoff import Backoff
from lakehouse.declare.inputs.own_sources import PythonSource
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Table
from lakehouse.errors import CommitError, LakehouseError, SourceAway, SourceError
from lakehouse.runtime.own_source import LOT, OwnReader
from lakehouse.settings import Settings
from lakehouse.storage.foreign.foreign_records import RECORDS
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position.checkpoints import Written
from lakehouse.storage.session import Session
from lakehouse.stream.reading import offset_ranges, offsets, records
from lakehouse.stream.reading.checked import Checked, SourceCheck, compared, partitions_of
from lakehouse.stream.reading.contract import Frames, Looks, Present, Reader, Receded, Records
from lakehouse.stream.reading.offsets import Broker, Gap, Offsets

_PAUSES = Backoff(1, 60)  # before a source that is away is asked again
_AT_ONCE = 64 << 20  # bytes of records that are held
_READING = 5.0  # seconds of reading, after which a step commits what there is


class OwnSource(Reader):
    """The reader of a source of one's own. A source that is away is asked again, after longer and longer pauses."""

    AWAY = (SourceAway,)

    def __init__(self, settings: Settings, table: Table, sources: Collection[RecordSource]) -> None:
        super().__init__(settings, table, sources)
        ((self.address, source),) = self.sources.items()
        self.source = cast(PythonSource, source)
        self.looks = Looks(self.source.poll_interval.total_seconds())
        self._reader = OwnReader(self.source)  # which makes the instance in the thread
        self._ends: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._is_compared = False  # the position, with the first offsets that exist
        self._failures = 0

    def begins(self, last: Written | Commit | None) -> Offsets:
        return offsets.behind(self.settings, self.table, last, {self.address: {}})

    def latest_offset(self, at: Offsets) -> Offsets:
        if self.looks.is_due or not offset_ranges.between(at, {self.address: self._ends}):
            self._ask(at[self.address])
        return {self.address: self._ends}

    def _ask(self, at: Mapping[str, int]) -> None:
        """Asks how far the source is. Raises SourceAway, SourceError, CommitError, Receded."""
        with self.looks.look():
            ends = self._reader.ends()
        if not self._is_compared or ends.keys() - at.keys():
            self._first = self._reader.begins(ends)
            self._check_there(at)
            self._is_compared = True
        for known in (at, self._ends):
            for partition, offset in known.items():
                if offset > (end := ends.get(partition, -1)):
                    raise self._receded(partition, offset, end)
        self._ends = ends

    def earliest_offset(self, ends: Offsets) -> Offsets:
        return {self.address: self._first}

    def _check_there(self, at: Mapping[str, int]) -> None:
        for partition, offset in at.items():
            if offset < self._first.get(partition, 0):
                raise CommitError(
                    f"table={self.table.name}, source={self.address}, partition={partition}, offset={offset}: the table goes on "
                    f"from there, and the source begins with {self._first[partition]}; what is between is lost to the table; "
                    f"`lakehouse topic accept-gap {self.table.name}` accepts that and goes on; have the source keep its records "
                    "for longer"
                )

    def _receded(self, partition: str, offset: int, end: int) -> Receded:
        message = (
            f"source={self.address}, partition={partition}, latest_offset={end if end >= 0 else 'none'}: it was {offset} "
            "before, and it never goes back, nor is a partition left out"
        )
        error = SourceError(
            f"table={self.table.name}, {message}; correct the class {self.source.class_name}, or read what is there now as a "
            "source of another name, into an ingest table of another name"
        )
        return Receded(error, f"{message}; one of its servers may lag, so it is asked again")

    def read(self, begin: Offsets, end: Offsets) -> Records:
        """Reads the same share of each partition, until there is enough for a step."""
        at = begin[self.address]
        waiting = {p: until for p, until in end[self.address].items() if at[p] < until}
        if not waiting:
            return Records(begin, begin, 0)
        reached = dict(at)
        size, seconds = _AT_ONCE // len(waiting), _READING / len(waiting)
        pieces: list[pa.Table] = []
        for partition, until in waiting.items():
            rows, reached[partition] = self._reader.table(
                partition, at[partition], until, size, seconds
            )
            pieces.append(rows)
        self._failures = 0
        rows = pa.concat_tables(pieces)  # without rows, the source lacks these offsets
        here = {self.address: rows}
        return Records(begin, {self.address: reached}, rows.num_rows, here=here)

    def reread(self, session: Session, begin: Offsets, end: Offsets, at: datetime) -> Frames:
        begins, ends = begin.get(self.address, {}), end[self.address]
        with closing(OwnReader(self.source)) as reader:
            first = begins if ends.keys() <= begins.keys() else {**reader.begins(ends), **begins}
            pieces = [
                reader.table(p, first[p], end)[0] for p, end in ends.items() if first[p] < end
            ]
        rows = pa.concat_tables([RECORDS.empty_table(), *pieces])
        return {self.address: records.dated(rows, at)}

    def present(self) -> Present:
        with closing(OwnReader(self.source)) as reader:  # another thread asks this
            return Present.before({self.address: reader.ends()})

    def away(self, err: LakehouseError) -> tuple[str, float]:
        if self.query.available_now:
            raise err
        self._is_compared = False  # it may be away because it has lost records
        self._failures += 1
        return f"{err}; it is asked again", _PAUSES.after(self._failures)

    def close(self) -> None:
        self._reader.close()


class OwnSourceCheck(SourceCheck[OwnSource]):
    """The check of a source of one's own, which is read again from its first offsets."""

    def verify(self, last: Commit) -> Iterator[Checked]:
        import numpy as np

        address = self.reader.address
        with closing(OwnReader(self.reader.source)) as reader:
            begins = reader.begins(reader.ends())
            read = last.inputs.get(address, {})
            for p, end, own in partitions_of(self.settings, self.table, address, read):
                start = min(begins.get(p, 0), end)
                there = [
                    offset
                    for first in range(start, end, LOT)
                    for offset, *_ in reader.records(p, first, min(first + LOT, end))
                ]
                yield compared((address, int(p), start, end), own, np.array(there, np.int64))

    def _described(self) -> Broker:
        with closing(OwnReader(self.reader.source)) as reader:
            ends = reader.ends()
            return Broker("", reader.begins(ends), ends)

    def lost(self, last: Commit | None) -> list[Gap]:
        described = {self.reader.address: self._described()}
        return offsets.lost(self.settings, self.table, described, last) if last else []

    def unreadable(self, session: Session) -> list[str]:
        try:
            self._described()
        except SourceAway:
            raise
        except SourceError as err:
            return [f"table={self.table.name}, {err}"]
        return []
