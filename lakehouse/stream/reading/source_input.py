"""The input of an ingest table's step loop: a range of offsets for each step, from the end of the table's last commit."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from lakehouse.errors import AccessError, DeclarationError, LakehouseError, SourceError
from lakehouse.ranges import BEGINNING
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position.checkpoints import Written
from lakehouse.stream.advance import IDLE, LOOK, Source, StepInput, StepLoop, Take
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.reading import offset_ranges, readings, records
from lakehouse.stream.reading.contract import TURN, Present, Reader, Receded, Records
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
        self._take, self._finish, self._quiet_timeout = take, finish, quiet_timeout
        self._begins: Offsets | None = None

    def attach(self, loop: StepLoop[Records]) -> None:
        super().attach(loop)
        self.reader.query = loop
        self._shown = Shown(self.run, self.reader, loop)
        self._ranges = Ranges(self.run, self.reader, loop, self._shown, self._quiet_timeout)
        try:
            self._begins = self.reader.begins(_last(self.run, self.reader))
        except LakehouseError as err:
            is_away = isinstance(err, (AccessError, *self.reader.AWAY))
            if loop.available_now or not is_away:
                raise  # else the thread asks again, and logs it

    def resume(self) -> tuple[Offsets, int]:
        number: int | None = None
        while not self.loop.stopping.is_set():
            try:
                if self._begins is None:
                    self._begins = self.reader.begins(_last(self.run, self.reader))
                self.loop.at = self._begins
                if number is None:  # once, also if a source is away after it
                    number = _finished(self.run, self.loop, self._finish)
                if self.loop.available_now:
                    self._ranges.until = self.reader.present()
                self._shown.is_over()
                self._shown.look_at_readings()
                return self._begins, number
            except self.reader.AWAY as err:
                self._ranges.wait_out(err)
        return self._begins or {}, 0  # it is stopped

    def next_batch(self) -> Records | None:
        return self._ranges.next()

    def take(self, piece: Records, number: int, log: BatchLog) -> None:
        rows = _rows(self.run, self.reader, piece, log)
        self._take(rows, number, replace(log, watermark=piece.cut or BEGINNING))

    def taken(self) -> None:
        self._shown.look_at_readings()

    def offset(self, position: Offsets) -> dict[str, Any]:
        return {address: dict(partitions) for address, partitions in position.items()}

    def reported(self, position: Offsets) -> tuple[Source, ...]:
        return (Source(json.dumps(position), json.dumps(self._ranges.ends or position)),)

    def latest(self) -> Present:
        return self.reader.present()

    def is_past(self, position: Present) -> bool:
        return self.loop.at is not None and position.is_read(self.loop.at)

    def explained(self, err: BaseException) -> BaseException:
        return self.reader.explained(err, self.loop.at or {})

    def close(self) -> None:
        self.reader.close()


def _last(run: StreamRun, reader: Reader) -> Written | Commit | None:
    """Returns the table's last commit. Raises DeclarationError if it is of other sources."""
    table, names = run.table, sorted(reader.sources)
    last = run.state.standing.last
    if last and set(last.inputs) != set(names):
        raise DeclarationError(
            f"table={table.name}, reads={', '.join(names)}: it was filled from {', '.join(sorted(last.inputs))}, and "
            "an ingest table keeps the sources that it began with; declare the others in one of another name, or take "
            "the change back"
        )
    return last


def _finished(run: StreamRun, loop: StepLoop[Records], finish: Finish) -> int:
    """Finishes the step that a crash left unfinished, and returns the number of the next one."""
    standing = run.state.standing
    if pending := standing.pending:
        what = f"batch {pending.batch}, offsets to {json.dumps(pending.inputs)}"
        loop.in_flight = pending.batch, what
        finish(pending)
        loop.in_flight = None
    return standing.last.batch + 1 if standing.last else 0


def _rows(run: StreamRun, reader: Reader, piece: Records, log: BatchLog) -> RawRecords:
    names = {source.address: name for name, source in run.plan.sources.items()}
    if piece.here is not None:
        here = {
            names[address]: records.held(run.session, records.dated(rows, log.at))
            for address, rows in piece.here.items()
        }
        return raw_records(run, here)
    read = reader.reread(run.session, piece.begin, piece.end, log.at)
    # each task writes a file, which every reader of the table opens
    tasks = 1 + piece.rows // _RECORDS
    partitions = sum(len(piece.end[address]) for address in read)
    raw = raw_records(run, {names[address]: rows for address, rows in read.items()})
    return replace(raw, tasks=tasks if tasks < partitions else 0)


class Ranges:
    """The ranges of the steps, one after another: waits for records, asks how far the sources are, and reads."""

    def __init__(
        self,
        run: StreamRun,
        reader: Reader,
        loop: StepLoop[Records],
        shown: "Shown",
        quiet_timeout: timedelta,
    ) -> None:
        self.run, self.reader, self.loop, self.shown = run, reader, loop, shown
        self.until: Present | None = None  # what is to be read, if it is to end at the present
        self.ends: Offsets = {}  # of the sources, at the last look
        self._silence = Silence(quiet_timeout.total_seconds(), time.monotonic())
        self._receded: float | None = None  # since when the sources do not reach as far as before

    def next(self) -> Records | None:
        """Waits for the records of the next step and returns them; None when there will be no more."""
        loop, idle_since = self.loop, time.monotonic()
        while not loop.stopping.is_set():
            self._wait()
            if (piece := self._cut()) is not None:
                self._silence.broken(time.monotonic())
                return piece
            if self.shown.trouble:  # unseen records may have come meanwhile
                self._silence.broken(time.monotonic())
            elif (passed := self._silence.passed(time.monotonic())) and self._may_go_on():
                # a step without records, by which event time goes on
                none = dict.fromkeys(loop.at, records.HELD.empty_table())
                return Records(loop.at, loop.at, 0, timedelta(seconds=passed), none)
            if self.until is not None and self.until.is_read(loop.at):
                if self.reader.refused:
                    raise SourceError(self.reader.refused)
                return None
            if not self.shown.trouble:
                loop.idle.set()
                if time.monotonic() - idle_since > IDLE:
                    idle_since = float("inf")
                    loop.report_idle()
        return None

    def _may_go_on(self) -> bool:
        """Returns True if a silent source may advance event time: never in a run up to the present."""
        last = None if self.loop.available_now else next(self.run.commit_log.by_stream(), None)
        return last is not None and bool(last.heads)

    def _wait(self) -> None:
        """Returns when the next step is due and a record may have come, or when it is time to look again."""
        loop, reader = self.loop, self.reader
        while not loop.is_asked_for and loop.due_in > 0:
            reader.wait(min(loop.due_in, LOOK), to_the_end=True)
        if offset_ranges.between(loop.at, self.ends) or reader.wait(0):
            return
        while not loop.stopping.is_set():
            if reader.wait(TURN if loop.is_asked_for else LOOK) or loop.is_asked_for:
                return
            if reader.looks.is_due or self._silence.is_due(time.monotonic()):
                return

    def _cut(self) -> Records | None:
        """Returns the next range that is there whole; None if there is nothing to read, or a source does not answer."""
        loop = self.loop
        try:
            self._look()
            ends = offset_ranges.up_to(self.ends, self.until.ends) if self.until else self.ends
            most = self.run.session.settings.max_offsets_per_trigger
            piece = self.reader.read(loop.at, offset_ranges.limited(loop.at, ends, most))
        except Receded as err:
            self._receded = self._receded or time.monotonic()
            if loop.available_now or time.monotonic() - self._receded >= _RECOVERED:
                raise err.error from None
            self.shown.say(str(err))
            loop.stopping.wait(2 * LOOK)
            return None
        except self.reader.AWAY as err:
            self.wait_out(err)
            return None
        self.shown.is_over()
        if piece.rows or piece.cut:
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
        self.ends, self._receded = ends, None

    def wait_out(self, err: LakehouseError) -> None:
        """Shows that a source is away, and waits a little. Raises the error if the query does not wait for it."""
        self.loop.in_flight = None  # nothing that could hang is at work
        trouble, pause = self.reader.away(err)
        self.shown.say(trouble)
        self.loop.stopping.wait(pause)


class Shown:
    """What a query shows of its sources: a trouble until it is over, and a remark. Either is logged once."""

    def __init__(self, run: StreamRun, reader: Reader, loop: StepLoop[Records]) -> None:
        self.run, self.reader, self.loop = run, reader, loop
        self.trouble = ""  # that was logged last, until it is over

    def say(self, trouble: str) -> None:
        """Logs the trouble, once until there is another, and shows it."""
        if trouble != self.trouble:
            _log.warning(f"table={self.run.table.name}: {trouble}")
        self.loop.trouble = self.trouble = trouble

    def is_over(self) -> None:
        """Ends the trouble, so that it is logged again if it comes back, and shows what the reader reports."""
        self.loop.trouble, self.trouble = self.reader.trouble, ""
        if (remark := self.reader.remark) is not None:
            self._note(remark, f"table={self.run.table.name}, {remark}")

    def look_at_readings(self) -> None:
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
