"""A query of ours: one limited step after another over what a table's input has gained.

A step reads what lies behind the table's position, computes, and commits rows and position
together, so that the table itself says how far it is. One thread for each table: one that fails or
is slow falls behind alone. What users of a query of Spark's know is here by the same names:
`isActive`, `exception`, `stop`, `awaitTermination`, `processAllAvailable`, `recentProgress`.
"""

import json
import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from pyspark import InheritableThread

from lakehouse.errors import ServiceAway
from lakehouse.ranges import BEGINNING
from lakehouse.runtime.own_source import Call, unanswered
from lakehouse.stream.micro_batch import BatchLog, StreamRun

_log = logging.getLogger(__name__)

LOOK = 0.5  # seconds until the next look for commits of other processes
IDLE = 10.0  # seconds without anything to do, after which that is reported
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds until a service that did not answer is asked again
_STOP = 60.0  # seconds for a step to end once it is asked to
Take = Callable[[Any, int, BatchLog], None]
"""Computes and writes what follows from some rows (of several inputs by their names), by the number of their batch."""


class StepFailed(Exception):
    """A step failed; the text is the traceback of what it raised, the cause that itself."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a report says of the input."""

    endOffset: str
    latestOffset: str | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """What one step did, by the names of Spark's own progress."""

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
    """What one step reads: so many rows, up to a position."""

    @property
    def rows(self) -> int: ...
    @property
    def end(self): ...
    @property
    def quiet(self) -> timedelta | None: ...


P = TypeVar("P", bound=Piece)


class StepInput(ABC, Generic[P]):
    """What a loop reads: it says what comes next, and how it is taken and kept."""

    loop: "StepLoop[P]"

    def attach(self, loop: "StepLoop[P]") -> None:
        """Reads for a loop, before its thread starts."""
        self.loop = loop

    @abstractmethod
    def resume(self) -> tuple[object, int]:
        """Returns the position of the table, and the number of its next batch.

        One that a crash left unfinished is finished first.
        """

    @abstractmethod
    def next_batch(self) -> P | None:
        """Returns what is to be read now, waiting for it; None when there will be nothing more."""

    @abstractmethod
    def take(self, piece: P, number: int, log: BatchLog) -> None:
        """Computes and writes the rows of a step. Raises ServiceAway if it is to be taken again."""

    def taken(self) -> None:
        """Called when a step is written."""

    @abstractmethod
    def offset(self, position: Any) -> dict[str, Any]:
        """A position as it is kept with a commit."""

    @abstractmethod
    def reported(self, position: Any) -> tuple[Source, ...]:
        """A position as reports have it."""

    @abstractmethod
    def latest(self) -> object:
        """Returns the position after all that the input has now. Another thread may ask."""

    @abstractmethod
    def is_past(self, position: Any) -> bool:
        """Whether all up to that position is read."""

    def wake(self) -> None:
        """Has a thread that waits for its input look again."""

    def close(self) -> None:
        """Gives back what the thread held."""

    def explained(self, err: BaseException) -> BaseException:
        """Returns what a failure means, where that can be said better than by what was raised."""
        return err


class StepLoop(Generic[P]):
    """Fills one table by steps until it is stopped, fails, or, `available_now`, has read what there was when it began."""

    def __init__(
        self,
        run: StreamRun,
        input: StepInput[P],
        *,
        available_now: bool = False,
        pace: timedelta = timedelta(0),
    ) -> None:
        self.run, self.input, self.available_now, self.pace = run, input, available_now, pace
        self.name = run.table.name
        # of the last hundred steps; replaced and never changed, for others read it
        self.recentProgress: list[Report] = []
        # the batch that is computed, or failed, and its range
        self.in_flight: tuple[int, str] | None = None
        self.trouble = ""  # why its input cannot be read just now; it goes on by itself
        self.remark = ""  # what else is to be known of its input; it goes on
        self.stopping = threading.Event()
        self.idle = threading.Event()  # all that it knows of is read
        self.hurried = threading.Event()  # someone waits until all is read
        self.at: Any = None  # the position; None before it is known
        self._error: StepFailed | None = None
        self._began = time.monotonic() - pace.total_seconds()  # the last step
        self._thread = InheritableThread(target=self._go_on, name=self.name, daemon=True)
        input.attach(self)

    @property
    def due_in(self) -> float:
        """In how many seconds the next step is due by its pace; less than zero once it is."""
        return self._began + self.pace.total_seconds() - time.monotonic()

    @property
    def is_asked_for(self) -> bool:
        """Whether someone waits for what is there now."""
        return self.available_now or self.hurried.is_set() or self.stopping.is_set()

    def start(self) -> "StepLoop[P]":
        self._thread.start()
        return self

    @property
    def isActive(self) -> bool:
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, bool]:
        """By Spark's name, whether a step is under way: waiting for rows, for its pace or for a broker is none."""
        return {"isTriggerActive": self.isActive and self.in_flight is not None}

    @property
    def unanswered(self) -> Call | None:
        """What its thread has waited for too long, of code that is not ours; None if nothing."""
        return unanswered(self._thread.ident)

    def exception(self) -> StepFailed | None:
        return None if self.isActive else self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Whether it has ended; raises what it failed with."""
        self._thread.join(timeout)
        if error := self.exception():
            raise error
        return not self.isActive

    def stop(self) -> None:
        """Ends it; a step under way is cut off, and is run again by the next life of the query."""
        self.stopping.set()
        self.input.wake()
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
        self.input.wake()
        while self.isActive and not (self.idle.is_set() and self.input.is_past(latest)):
            time.sleep(0.02)
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
            # also the SystemExit of a function that calls sys.exit: the thread ends by it
            if not self.stopping.is_set():
                err = self.input.explained(err)
                self._error = StepFailed("".join(traceback.format_exception(err)))
                self._error.__cause__ = err
        finally:
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
        """Takes the step; one that waits for the answers of a service again and again, unless it is to end at the present."""
        flying, pause = self.in_flight, _PAUSE
        while True:
            try:
                self.input.take(piece, number, log)
            except ServiceAway as err:
                if self.available_now or self.stopping.is_set():
                    raise
                if str(err) != self.trouble:
                    _log.warning(f"table={self.name}: {err}; its step waits")
                # it is at no work that could hang
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
