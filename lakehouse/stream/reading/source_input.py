"""The input of an ingest table's step loop: a range of offsets for each step, from the end of the table's last commit."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from lakehouse.errors import AccessError, DeclarationError, LakehouseError
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position.checkpoints import Written
from lakehouse.stream.advance import IDLE, LOOK, Source, StepInput, StepLoop, Take
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.reading import readings, records
from lakehouse.stream.reading.contract import Reader, Receded, Records
from lakehouse.stream.reading.offsets import Offsets
from lakehouse.stream.reading.raw_records import RawRecords, raw_records
from lakehouse.watermarks import Silence

_log = logging.getLogger(__name__)

_RECORDS = 10_000  # of a step, that are worth a task of their own
_RECOVERED = 30.0  # seconds for a source that has just started, or lags, to reach as far as before
Finish = Callable[[Written], None]
"""Writes the rest of a step whose rows are in the table."""


class SourceInput(StepInput[Records]):
    """The input of an ingest table, by the reader of its sources.

    Raises SourceError, CommitError or DeclarationError if the table cannot go on from its last
    commit. It waits for a source that does not answer, unless the query is to end at the present.
    """

    def __init__(
        self,
        run: StreamRun,
        reader: Reader,
        take: Take,
        finish: Finish,
        quiet_timeout: timedelta = timedelta(0),
    ) -> None:
        self.run, self.reader = run, reader
        self._take, self._finish = take, finish
        self._silence = Silence(quiet_timeout.total_seconds(), time.monotonic())
        self._names = sorted(reader.sources)
        self._begins: Offsets | None = None
        self._until: object | None = None  # what is to be read, if it is to end at the present
        self._ends: Offsets = {}  # of the sources, at the last look
        self._receded: float | None = None  # since when the sources do not reach as far as before
        self._said = ""  # the trouble that was logged last, until it is over

    def attach(self, loop: StepLoop[Records]) -> None:
        super().attach(loop)
        self.reader.attend(loop.stopping, available_now=loop.available_now)
        try:
            self._begins = self.reader.begins(self._last())
        except LakehouseError as err:
            is_away = isinstance(err, (AccessError, *self.reader.AWAY))
            if loop.available_now or not is_away:
                raise  # else the thread asks again, and logs it

    def _last(self) -> Written | Commit | None:
        """Returns the table's last commit. Raises DeclarationError if it is of other sources."""
        table = self.run.table
        last = self.run.state.standing.last
        if last and set(last.inputs) != set(self._names):
            raise DeclarationError(
                f"table={table.name}, reads={', '.join(self._names)}: it was filled from {', '.join(sorted(last.inputs))}, and "
                "an ingest table keeps the sources that it began with; declare the others in one of another name, or take "
                "the change back"
            )
        return last

    def resume(self) -> tuple[Offsets, int]:
        number: int | None = None
        while not self.loop.stopping.is_set():
            try:
                if self._begins is None:
                    self._begins = self.reader.begins(self._last())
                self.loop.at = self._begins
                if number is None:  # once, also if a source is away after it
                    number = self._finished()
                if self.loop.available_now:
                    self._until = self.reader.present()
                self._is_over()
                self._look_at_readings()
                return self._begins, number
            except self.reader.AWAY as err:
                self._wait_out(err)
        return self._begins or {}, 0  # it is stopped

    def _finished(self) -> int:
        """Finishes the step that a crash left unfinished, and returns the number of the next one."""
        standing = self.run.state.standing
        if pending := standing.pending:
            self.loop.in_flight = (
                pending.batch,
                f"batch {pending.batch}, offsets to {json.dumps(pending.inputs)}",
            )
            self._finish(pending)
            self.loop.in_flight = None
        return standing.last.batch + 1 if standing.last else 0

    def next_batch(self) -> Records | None:
        loop, idle_since = self.loop, time.monotonic()
        while not loop.stopping.is_set():
            self._wait()
            if (piece := self._cut()) is not None:
                self._silence.broken(time.monotonic())
                return piece
            if self._said:  # unseen records may have come meanwhile
                self._silence.broken(time.monotonic())
            elif (passed := self._silence.passed(time.monotonic())) and self._may_go_on():
                return self._quiet(timedelta(seconds=passed))
            if self._until is not None and self.reader.has_read(self._until, loop.at):
                self.reader.ended()
                return None
            if not self._said:
                loop.idle.set()
                if time.monotonic() - idle_since > IDLE:
                    idle_since = float("inf")
                    loop.report_idle()
        return None

    def _may_go_on(self) -> bool:
        """Returns True if a silent source may advance event time: never in a run up to the present."""
        last = None if self.loop.available_now else next(self.run.commit_log.by_stream(), None)
        return last is not None and bool(last.heads)

    def _quiet(self, passed: timedelta) -> Records:
        """Returns a step without records, by which event time goes on."""
        at = self.loop.at
        return Records(at, at, 0, passed, dict.fromkeys(at, records.HELD.empty_table()))

    def _wait(self) -> None:
        """Returns when the next step is due and a record may have come, or when it is time to look again."""
        loop, reader = self.loop, self.reader
        while not loop.is_asked_for and loop.due_in > 0:
            reader.rest(min(loop.due_in, LOOK))
        if reader.has_news(loop.at, self._ends):
            return
        while not loop.stopping.is_set():
            reader.wait(0 if loop.is_asked_for else LOOK)
            if loop.is_asked_for or reader.is_to_look or reader.has_news(loop.at, self._ends):
                return
            if self._silence.is_due(time.monotonic()):
                return

    def _cut(self) -> Records | None:
        """Returns the next range that is there whole; None if there is nothing to read, or a source does not answer."""
        loop = self.loop
        try:
            self._look()
            begin, end = self.reader.next_range(loop.at, self._ends, self._until)
            piece = self.reader.read(begin, end)
        except Receded as err:
            self._receded = self._receded or time.monotonic()
            if loop.available_now or time.monotonic() - self._receded >= _RECOVERED:
                raise err.error from None
            self._say(str(err))
            loop.stopping.wait(2 * LOOK)
            return None
        except self.reader.AWAY as err:
            self._wait_out(err)
            return None
        self._is_over()
        if piece.rows or piece.is_cut:
            loop.idle.clear()
            loop.at = piece.begin
            return piece
        loop.at = piece.end
        return None

    def _look(self) -> None:
        """Asks how far the sources are; partitions that are new begin at their first offset."""
        at = self.loop.at
        ends = self.reader.latest_offset(at)
        if any(ends[address].keys() - at.get(address, {}).keys() for address in ends):
            first = self.reader.earliest_offset(ends)
            self.loop.at = {
                address: {**first.get(address, {}), **at.get(address, {})} for address in ends
            }
        self._ends, self._receded = ends, None

    def _wait_out(self, err: LakehouseError) -> None:
        self.loop.in_flight = None  # nothing that could hang is at work
        self.reader.wait_out(err, self._say)

    def take(self, piece: Records, number: int, log: BatchLog) -> None:
        rows = self._rows(piece, log)
        self._take(rows, number, replace(log, watermark=self.reader.watermark))

    def taken(self) -> None:
        self._look_at_readings()

    def _look_at_readings(self) -> None:
        """Logs once that a database's table was read again, and shows it as the remark from then on."""
        if not any(source.keys for source in self.reader.sources.values()):
            return
        last = next(self.run.commit_log.by_stream(), None)
        remark = readings.remark(self.run.table.name, last.readings) if last else ""
        self._note(remark, remark)

    def _note(self, remark: str, line: str) -> None:
        if remark and remark != self.loop.remark:
            _log.warning(line)
        self.loop.remark = remark

    def _rows(self, piece: Records, log: BatchLog) -> RawRecords:
        run = self.run
        names = {source.address: name for name, source in run.plan.sources.items()}
        if piece.here is not None:
            here = {
                names[address]: records.held(run.session, records.dated(rows, log.at))
                for address, rows in piece.here.items()
            }
            return raw_records(run, here)
        read = self.reader.reread(run.session, piece.begin, piece.end, log.at)
        # each task writes a file, which every reader of the table opens
        tasks = 1 + piece.rows // _RECORDS
        partitions = sum(len(piece.end[address]) for address in read)
        raw = raw_records(run, {names[address]: rows for address, rows in read.items()})
        return replace(raw, tasks=tasks if tasks < partitions else 0)

    def offset(self, position: Offsets) -> dict[str, Any]:
        return {address: dict(partitions) for address, partitions in position.items()}

    def reported(self, position: Offsets) -> tuple[Source, ...]:
        return (Source(json.dumps(position), json.dumps(self._ends or position)),)

    def latest(self) -> object:
        return self.reader.present()

    def is_past(self, position: object) -> bool:
        return self.loop.at is not None and self.reader.has_read(position, self.loop.at)

    def explained(self, err: BaseException) -> BaseException:
        return self.reader.explained(err, self.loop.at or {})

    def close(self) -> None:
        self.reader.close()

    def _say(self, trouble: str) -> None:
        """Logs the trouble, once until there is another, and shows it."""
        if trouble != self._said:
            _log.warning(f"table={self.run.table.name}: {trouble}")
        self.loop.trouble = self._said = trouble

    def _is_over(self) -> None:
        """Ends the trouble, so that it is logged again if it comes back, and shows what the reader reports."""
        self.loop.trouble, self._said = self.reader.trouble(), ""
        if (remark := self.reader.remark) is not None:
            self._note(remark, f"table={self.run.table.name}, {remark}")
