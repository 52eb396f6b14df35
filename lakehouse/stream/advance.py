"""A query of ours: one limited step after another over the new rows of a table's input.

A step reads the input after the table's position, computes, and commits rows and position together.
So the table itself holds its position. Each table has a thread: one that fails or is slow lags
alone. Users of a query of Spark's find the same names here:
`isActive`, `exception`, `stop`, `awaitTermination`, `processAllAvailable`, `recentProgress`.
"""

import json
import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from pyspark import InheritableThread

from lakehouse.errors import ServiceAway
from lakehouse.ranges import BEGINNING
from lakehouse.runtime.own_source import Call, unanswered
from lakehouse.stream.micro_batch import BatchLog, StreamRun

_log = logging.getLogger(__name__)

LOOK = 0.5  # seconds between two polls for commits of other processes
IDLE = 10.0  # seconds without work, after which an idle report is made
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds until a service that did not answer is asked again
_STOP = 60.0  # seconds in which a step must end once it is asked to
Take = Callable[[Any, int, BatchLog], None]
"""Computes and writes the results of a step's rows, given with the number of their batch; several inputs come by name."""


class StepFailed(Exception):
    """The failure of a step: its text is the traceback of the exception, its cause the exception itself."""


@dataclass(frozen=True, slots=True)
class Source:
    """The input, as a report shows it."""

    endOffset: str
    latestOffset: str | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """The progress of one step, by the names of Spark's own progress."""

    name: str
    batchId: int
    timestamp: str
    numInputRows: int = 0
    inputRowsPerSecond: float = 0.0
    batchDuration: int = 0  # milliseconds
    durationMs: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    stateOperators: tuple = ()

    @property
    def json(self) -> str:
        sources = [
            {
                "endOffset": json.loads(source.endOffset),
                "latestOffset": source.latestOffset and json.loads(source.latestOffset),
                "metrics": source.metrics,
            }
            for source in self.sources
        ]
        return json.dumps(
            {name: getattr(self, name) for name in self.__slots__} | {"sources": sources}
        )


class Piece(Protocol):
    """The input of one step: a number of rows, up to a position."""

    @property
    def rows(self) -> int: ...
    @property
    def end(self): ...
    @property
    def quiet(self) -> timedelta | None: ...


class RealTime(Protocol):
    """A thread beside the loop that sends rows before their commit."""

    trouble: str

    def start(self, loop: "StepLoop") -> None: ...
    def stop(self) -> None: ...


P = TypeVar("P", bound=Piece)


class StepInput(ABC, Generic[P]):
    """The input of a loop: it finds the next piece, and computes and writes its rows."""

    loop: "StepLoop[P]"

    def attach(self, loop: "StepLoop[P]") -> None:
        """Sets the loop that this input serves, before the loop's thread starts."""
        self.loop = loop

    @abstractmethod
    def resume(self) -> tuple[object, int]:
        """Returns the position of the table, and the number of its next batch.

        A batch that a crash left unfinished is finished first.
        """

    @abstractmethod
    def next_batch(self) -> P | None:
        """Waits for the next piece and returns it; None when there will be no more."""

    @abstractmethod
    def take(self, piece: P, number: int, log: BatchLog) -> None:
        """Computes and writes the rows of a step. Raises ServiceAway if the step is to be retried."""

    def taken(self) -> None:
        """Follows up on a step that is written."""

    @abstractmethod
    def offset(self, position: Any) -> dict[str, Any]:
        """Returns a position in the form that is kept with a commit."""

    @abstractmethod
    def reported(self, position: Any) -> tuple[Source, ...]:
        """Returns a position in the form of reports."""

    @abstractmethod
    def latest(self) -> object:
        """Returns the position after all that the input has now. Another thread may call this."""

    @abstractmethod
    def is_past(self, position: Any) -> bool:
        """Returns True if all up to that position is read."""

    def wake(self) -> None:
        """Makes a thread that waits for its input look again."""

    def close(self) -> None:
        """Releases what the thread held."""

    def explained(self, err: BaseException) -> BaseException:
        """Returns a clearer error for a failure, if there is one; else the error that was raised."""
        return err


class StepLoop(Generic[P]):
    """A loop of steps that fills one table until it is stopped or fails; `available_now`: until it has read what is there."""

    def __init__(
        self,
        run: StreamRun,
        input: StepInput[P],
        *,
        available_now: bool = False,
        pace: timedelta = timedelta(0),
        real_time: Sequence["RealTime"] = (),
    ) -> None:
        self.run, self.input, self.available_now, self.pace = run, input, available_now, pace
        self.name, self.real_time = run.table.name, real_time
        # the last hundred reports; replaced, never mutated, because other threads read it
        self.recentProgress: list[Report] = []
        # the batch that is being computed, or that failed, and its range
        self.in_flight: tuple[int, str] | None = None
        self.trouble = ""  # why the input cannot be read now; the loop retries by itself
        self.remark = ""  # another remark on the input, which does not stop the loop
        self.stopping = threading.Event()
        self.idle = threading.Event()  # all known input is read
        self.hurried = threading.Event()  # a caller waits until all is read
        self.at: Any = None  # the position; None before it is known
        self._error: StepFailed | None = None
        self._began = time.monotonic() - pace.total_seconds()  # when the last step began
        self._thread = InheritableThread(target=self._go_on, name=self.name, daemon=True)
        input.attach(self)

    @property
    def due_in(self) -> float:
        """Returns the seconds until the next step is due by the pace; negative once it is overdue."""
        return self._began + self.pace.total_seconds() - time.monotonic()

    @property
    def is_asked_for(self) -> bool:
        """Returns True if someone waits for what is there now: a run up to the present, a caller, or `stop`."""
        return self.available_now or self.hurried.is_set() or self.stopping.is_set()

    def start(self) -> "StepLoop[P]":
        self._thread.start()
        for sender in self.real_time:
            sender.start(self)
        return self

    @property
    def isActive(self) -> bool:
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, bool]:
        """Returns the status by Spark's name: active while a step runs, not while it waits for rows, its pace or a broker."""
        return {"isTriggerActive": self.isActive and self.in_flight is not None}

    @property
    def unanswered(self) -> Call | None:
        """Returns the call of code that is not ours for which the thread has waited too long; None if there is none."""
        return unanswered(self._thread.ident)

    def exception(self) -> StepFailed | None:
        return None if self.isActive else self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Waits for the end, at most `timeout` seconds, and returns True if it has come; raises what the query failed with."""
        self._thread.join(timeout)
        if error := self.exception():
            raise error
        return not self.isActive

    def stop(self) -> None:
        """Ends the query. A running step is interrupted, and the next life of the query runs it again."""
        self.stopping.set()
        self.input.wake()
        for sender in self.real_time:
            sender.stop()
        if self.run.service:
            self.run.service.stop()
        if self._thread.is_alive():
            self.run.session.spark.sparkContext.cancelJobsWithTag(self._tag)
            self.run.prepared.interrupt()
            self._thread.join(_STOP)
            if self._thread.is_alive():
                message = (
                    f"its step has not ended {_STOP:.0f} s after it was cut off; it ends with the "
                    "process, and is taken again"
                )
                _log.warning(f"table={self.name}: {message}")

    def processAllAvailable(self) -> None:
        """Returns when all that the input has now is read; raises what the query failed with."""
        latest = self.input.latest()
        self.hurried.set()
        try:
            self.input.wake()
            while self.isActive and not (self.idle.is_set() and self.input.is_past(latest)):
                time.sleep(0.02)
        finally:
            self.hurried.clear()
        if error := self.exception():
            raise error

    @property
    def _tag(self) -> str:
        return f"{self.name}-{id(self)}"

    def _go_on(self) -> None:
        context = self.run.session.spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", self.name)
        context.addJobTag(self._tag)
        try:
            self.at, number = self.input.resume()
            while not self.stopping.is_set():
                piece = self.input.next_batch()
                if piece is None:
                    break
                self.step(piece, number)
                number += 1
        except BaseException as err:
            # also the SystemExit of a function that calls sys.exit, which ends the thread
            if not self.stopping.is_set():
                err = self.input.explained(err)
                self._error = StepFailed("".join(traceback.format_exception(err)))
                self._error.__cause__ = err
        finally:
            for sender in self.real_time:
                sender.stop()
            self.input.close()
            self.run.prepared.close()
            self.idle.set()

    def step(self, piece: P, number: int) -> None:
        """Takes one step, and reports it."""
        before, started = self._began, time.monotonic()
        self._began = started
        self.idle.clear()
        offset = self.input.offset(piece.end)
        since = json.dumps(self.input.offset(self.at)) if self.at else "the start"
        self.in_flight = number, f"batch {number}, offsets from {since} to {json.dumps(offset)}"
        log = BatchLog(BEGINNING, datetime.now(UTC), offset, piece.rows, piece.quiet)
        self._take(piece, number, log)
        self.input.taken()
        self.in_flight = None
        self.at = piece.end
        took = time.monotonic() - started
        self._report(
            Report(
                self.name,
                number,
                _now(),
                piece.rows,
                piece.rows / max(started - before, took),
                round(took * 1000),
                {"addBatch": round(took * 1000)},
                self.input.reported(piece.end),
            )
        )

    def _take(self, piece: P, number: int, log: BatchLog) -> None:
        """Takes the step; retries it while a service is away, unless the query ends at the present or is stopped."""
        flying, pause = self.in_flight, _PAUSE
        while True:
            try:
                self.input.take(piece, number, log)
            except ServiceAway as err:
                if self.available_now or self.stopping.is_set():
                    raise
                if str(err) != self.trouble:
                    _log.warning(f"table={self.name}: {err}; its step waits")
                # nothing that could hang is at work meanwhile
                self.trouble, self.in_flight = str(err), None
                if self.stopping.wait(pause):
                    raise
                self.in_flight, pause = flying, min(2 * pause, _LONGEST_PAUSE)
            else:
                self.trouble = ""
                return

    def report_idle(self) -> None:
        self._report(Report(self.name, -1, _now(), sources=self.input.reported(self.at)))

    def _report(self, report: Report) -> None:
        self.recentProgress = [*self.recentProgress[-99:], report]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
