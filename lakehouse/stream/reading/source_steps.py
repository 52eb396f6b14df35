"""The steps of an ingest table: a range of offsets each, from where the table's last commit ends to where its sources end.

What topics, folders, tables of others and sources of one's own have in common; how each is read is in
`topic_steps`, `file_steps` and `own_steps`.
"""

import json
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from lakehouse.errors import DeclarationError
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.position import checkpoints
from lakehouse.storage.position.checkpoints import Written
from lakehouse.stream.advance import IDLE, Source, Stepped, Take
from lakehouse.stream.micro_batch import StreamRun
from lakehouse.stream.reading import records
from lakehouse.stream.reading.offsets import Offsets
from lakehouse.stream.reading.raw_records import RawRecords, raw_records
from lakehouse.watermarks import Silence

_log = logging.getLogger(__name__)

_RECORDS = 10_000  # of a step, to be worth a task of their own
Finish = Callable[[Written], None]
"""Writes what a step, whose rows are in the table, has not written yet."""


@dataclass(frozen=True, slots=True)
class Records:
    """What one step reads of its sources."""

    begin: Offsets
    end: Offsets
    rows: int
    quiet: timedelta | None = None  # so long no record came, which the table is to know
    here: Mapping[str, pa.Table] | None = (
        None  # by the name in `_arrival`, if they are here already
    )


class SourceSteps(Stepped[Records]):
    """Fills an ingest table from its sources.

    Raises SourceError, CommitError or DeclarationError if it cannot go on from the table's last
    commit. A source that does not answer is waited for, unless the query is to end at the present.
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
        self._names = sorted(source.topic for source in run.plan.sources.values())
        self._until: Any = None  # what is to be read, if it is to end at the present
        self._ends: Offsets = {}  # of the sources, as they were looked at last
        self._looked = time.monotonic()  # when they were
        self._said = ""  # the trouble that was logged last, until it is over

    @abstractmethod
    def _cut(self) -> Records | None:
        """The next range that is there whole; None if there is nothing to read, or a source does not answer."""

    @abstractmethod
    def _wait(self) -> None:
        """Returns when the next step is due and a record may have come, or when it is time to look again."""

    @property
    def _is_blind(self) -> bool:
        """Whether nobody knows what has come meanwhile."""
        return bool(self.trouble)

    def _last(self) -> Written | Commit | None:
        """The table's last commit. Raises DeclarationError if it is of other sources."""
        last = checkpoints.standing(self.run.session.settings, self.run.table).last
        if last and set(last.inputs) != set(self._names):
            raise DeclarationError(
                f"table={self.name}, reads={', '.join(self._names)}: it was filled from {', '.join(sorted(last.inputs))}, and "
                "an ingest table keeps the sources that it began with; declare the others in one of another name, or take "
                "the change back"
            )
        return last

    def _finished(self) -> int:
        """Finishes the step that a crash left unfinished; the number of the next one."""
        standing = checkpoints.standing(self.run.session.settings, self.run.table)
        if pending := standing.pending:
            self.in_flight = (
                pending.batch,
                f"batch {pending.batch}, offsets to {json.dumps(pending.inputs)}",
            )
            self._finish(pending)
            self.in_flight = None
        return standing.last.batch + 1 if standing.last else 0

    def _next(self) -> Records | None:
        quiet = time.monotonic()
        while not self._stopping.is_set():
            self._wait()
            if (piece := self._cut()) is not None:
                self._silence.broken(time.monotonic())
                return piece
            if self._is_blind:
                self._silence.broken(time.monotonic())
            elif (passed := self._silence.passed(time.monotonic())) and self._may_go_on():
                return self._quiet(timedelta(seconds=passed))
            if self._until is not None and self._is_past(self._until):
                return None
            if not self._is_blind:
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
        """A step without records, by which event time goes on."""
        none = dict.fromkeys(self._at, records.HELD.empty_table())
        return Records(self._at, self._at, 0, passed, none)

    @property
    def _is_due(self) -> bool:
        """Whether the next step need not wait for its pace."""
        return self._is_asked_for or self._due_in <= 0

    @property
    def _due_in(self) -> float:
        """In how many seconds the next step is due."""
        return self._began + self.pace.total_seconds() - time.monotonic()

    @property
    def _is_asked_for(self) -> bool:
        """Whether someone waits for what is there now."""
        return self.available_now or self._hurried.is_set() or self._stopping.is_set()

    def _rows(self, piece: Records) -> RawRecords:
        """What the step takes."""
        run, plan, by_topic = self.run, self.run.plan, piece.here
        if by_topic is not None:
            return raw_records(
                run,
                {
                    name: records.held(run.session, by_topic[of.topic])
                    for name, of in plan.sources.items()
                    if of.topic in by_topic
                },
            )
        read = {
            name: records.between(run.session, run.table, of, piece.begin.get(of.topic), piece.end)
            for name, of in plan.sources.items()
            if of.topic in piece.end
        }
        # each task writes a file, and all that reads the table opens it
        tasks, partitions = 1 + piece.rows // _RECORDS, sum(map(len, piece.end.values()))
        return replace(raw_records(run, read), tasks=tasks if tasks < partitions else 0)

    def _offset(self, position: Offsets) -> dict[str, Any]:
        return {name: dict(partitions) for name, partitions in position.items()}

    def _sources(self, position: Offsets) -> tuple[Source, ...]:
        return (Source(json.dumps(position), json.dumps(self._ends or position)),)

    def _say(self, trouble: str) -> None:
        """On standard error, once until something else is amiss."""
        if trouble != self._said:
            _log.warning(f"table={self.name}: {trouble}")
        self.trouble = self._said = trouble

    def _is_over(self) -> None:
        """Nothing is amiss any more: what was said is said again when it comes back."""
        self.trouble = self._said = ""
