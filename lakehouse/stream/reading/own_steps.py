"""The steps of an ingest table that reads a source of one's own: its class is asked in the thread of the query.

Positions are as those of a topic: of each partition the next offset. A step reads its records before it begins, so its
length is known, and what the class gives wrong ends the query before anything of it is written.
"""

import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lakehouse.errors import CommitError, SourceAway, SourceError
from lakehouse.runtime.own_source import OwnReader
from lakehouse.stream.advance import LOOK, Take
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.reading import offset_ranges, offsets, records
from lakehouse.stream.reading.offsets import Offsets
from lakehouse.stream.reading.source_steps import Finish, Records, SourceSteps

_TURN = 0.1  # seconds between two looks whether there is something to do
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds until a source that is away is asked again
_RECOVERED = 30.0  # seconds for one of its servers that lags to have what another one had
_AT_ONCE = 64 << 20  # bytes of records that are held
_READING = 5.0  # seconds of reading, after which a step commits what there is


class OwnSteps(SourceSteps):
    """Fills an ingest table from a source of one's own.

    Raises SourceError, CommitError or DeclarationError if it cannot go on from the table's last
    commit. A source that is away is waited for, unless the query is to end at the present.
    """

    def __init__(self, run: StreamRun, take: Take, finish: Finish, **how: Any) -> None:
        super().__init__(run, take, finish, **how)
        self._source = records.own_source(run.plan.sources.values())
        self._topic = self._source.address
        self._poll = self._source.poll_interval.total_seconds()
        self._reader = OwnReader(self._source)  # which makes the instance in the thread
        none: Offsets = {self._topic: {}}
        self._begins = offsets.behind(run.session.settings, run.table, self._last(), none)
        self._until: Offsets | None = None
        self._ends = {self._topic: {}}
        self._looked = float("-inf")
        self._is_compared = False  # with the first offsets that there are
        self._pause = _PAUSE
        self._sound = time.monotonic()  # when the source last reached as far as before

    def _resumed(self) -> tuple[Offsets, int]:
        self._at = self._begins
        while not self._stopping.is_set():
            try:
                number = self._finished()
                if self.available_now:
                    self._until = self._asked()
                return self._at, number
            except SourceAway as err:
                self._wait_for_source(err)
        return self._at, 0

    def _wait_for_source(self, err: SourceAway) -> None:
        """Says what the source did not answer. Raises it where only what is there now is to be read."""
        self.in_flight = None  # it is at no work that could hang
        if self.available_now:
            raise err
        self._is_compared = False  # what it has lost may be why
        self._say(f"{err}; it is asked again")
        self._stopping.wait(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _wait(self) -> None:
        while not self._is_due:
            self._stopping.wait(min(max(self._due_in, 0), LOOK))
        if self._has_more:
            return
        while not self._stopping.wait(_TURN):
            now = time.monotonic()
            if self._is_asked_for or self._is_to_look or self._silence.is_due(now):
                return

    @property
    def _is_to_look(self) -> bool:
        return time.monotonic() - self._looked >= self._poll

    @property
    def _has_more(self) -> bool:
        """Whether the last look has found more than is read."""
        return offset_ranges.between(self._at, self._ends) > 0

    def _cut(self) -> Records | None:
        try:
            if not self._has_more or self._is_to_look:
                found = self._asked()
                if self._goes_back(found):
                    self._stopping.wait(2 * LOOK)
                    return None
                self._ends = found
            piece = self._piece()
        except SourceAway as err:
            self._wait_for_source(err)
            return None
        self._is_over()
        self._pause = _PAUSE
        return piece

    def _asked(self) -> Offsets:
        """How far the source is; partitions that are new begin at their first offset.

        Raises SourceAway, SourceError, CommitError.
        """
        self._looked = time.monotonic()
        ends, at = self._reader.ends(), self._at[self._topic]
        if not self._is_compared or ends.keys() - at.keys():
            first = self._reader.begins(ends)
            self._check_there(first)
            self._at = {self._topic: {**first, **at}}
            self._is_compared = True
        return {self._topic: ends}

    def _check_there(self, first: dict[str, int]) -> None:
        for partition, offset in self._at[self._topic].items():
            if offset < first.get(partition, 0):
                raise CommitError(
                    f"table={self.name}, source={self._topic}, partition={partition}, offset={offset}: the table goes on from "
                    f"there, and the source begins with {first[partition]}; what is between is lost to the table; `lakehouse "
                    f"topic accept-gap {self.name}` accepts that and goes on; have the source keep its records for longer"
                )

    def _goes_back(self, found: Offsets) -> bool:
        """Whether the source ends before what it has had. Raises SourceError if that lasts."""
        for known in (self._at, self._ends):
            for partition, offset in known[self._topic].items():
                if offset > (end := found[self._topic].get(partition, -1)):
                    return self._has_gone_back(partition, offset, end)
        self._sound = time.monotonic()
        return False

    def _has_gone_back(self, partition: str, offset: int, end: int) -> bool:
        message = (
            f"source={self._topic}, partition={partition}, latest_offset={end if end >= 0 else 'none'}: it was {offset} before, "
            "and it never goes back, nor is a partition left out"
        )
        if self.available_now or time.monotonic() - self._sound > _RECOVERED:
            raise SourceError(
                f"table={self.name}, {message}; correct the class {self._source.class_name}, or read what is there now as a "
                "source of another name, into an ingest table of another name"
            )
        self._say(f"{message}; one of its servers may lag, so it is asked again")
        return True

    def _piece(self) -> Records | None:
        """The records up to where the source is, or the same share of each partition."""
        most = self.run.session.settings.max_offsets_per_trigger
        ends = offset_ranges.up_to(self._ends, self._until) if self._until else self._ends
        end = offset_ranges.limited(self._at, ends, most)
        if not offset_ranges.between(self._at, end):
            return None
        self._idle.clear()
        at = self._at[self._topic]
        waiting = {p: until for p, until in end[self._topic].items() if at[p] < until}
        size, seconds = _AT_ONCE // len(waiting), _READING / len(waiting)
        pieces: list[pa.Table] = []
        reached = dict(at)
        for partition, until in waiting.items():
            rows, reached[partition] = self._reader.table(
                partition, at[partition], until, size, seconds
            )
            pieces.append(rows)
        rows = pa.concat_tables(pieces)
        if not rows.num_rows:  # numbers that are missing
            self._at = {self._topic: reached}
            return None
        return Records(self._at, {self._topic: reached}, rows.num_rows, here={self._topic: rows})

    def _take(self, piece: Records, number: int, log: BatchLog) -> None:
        here = {topic: records.dated(rows, log.at) for topic, rows in (piece.here or {}).items()}
        super()._take(replace(piece, here=here), number, log)

    def _latest(self) -> Offsets:
        with closing(OwnReader(self._source)) as reader:  # another thread asks this
            return {self._topic: reader.ends()}

    def _is_past(self, position: Offsets) -> bool:
        return self._at is not None and not offset_ranges.between(self._at, position)

    def _close(self) -> None:
        self._reader.close()
