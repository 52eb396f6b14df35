"""The query of a table that needs no state of Spark's: one bounded step after another over what its input has gained.

A step reads the files behind the table's position, computes, and commits rows and position together, so that the table itself
says how far it is. One thread for each table: one that fails or is slow falls behind alone. What users of a query of Spark's
know is here by the same names: `isActive`, `exception`, `stop`, `awaitTermination`, `processAllAvailable`, `recentProgress`.
"""

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyspark import InheritableThread
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import checkpoints, delta_log, plan
from lakehouse.event_time import ORIGIN
from lakehouse.live_run import BatchLog, LiveRun
from lakehouse.ranges import EPOCH
from lakehouse.stream import news, positions
from lakehouse.stream.positions import Piece, Position

_LOOK = 0.5  # seconds until the next look whether another process has added to the input: it asks for one file
_PATIENCE = 10.0  # seconds that input waits at most for more, before a step that has nothing to write notes how far it is
_IDLE = 10.0  # seconds without anything to do, after which that is reported
_OUTSTANDING = 1_000  # files that wait are counted up to so many
_STOP = 60.0  # seconds for a step to end once it is told to


class StepFailed(Exception):
    """A step failed; the text is the traceback of what it raised."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a table does with its input.

    `take`: computes and writes what follows from some rows, by the number of their batch. `due`: whether there is something to
    write once the input is read up to an offset; if not, the step waits for more.
    """

    take: Callable[[DataFrame, int, BatchLog], None]
    due: Callable[[Mapping[str, object]], bool] = lambda offset: True


@dataclass(frozen=True, slots=True)
class Source:
    """What a report says of the input."""

    endOffset: str
    latestOffset: None = None
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
        sources = [{"endOffset": json.loads(s.endOffset), "metrics": s.metrics} for s in self.sources]
        return json.dumps({name: getattr(self, name) for name in self.__slots__} | {"sources": sources})


class Stepped:
    """Fills one table by steps until it is stopped, fails, or, `available_now`, has read what there was when it began."""

    def __init__(self, run: LiveRun, step: Step, *, available_now: bool = False, pace: timedelta = timedelta(0)) -> None:
        self.run, self.step, self.pace = run, step, pace
        self.name = run.table.name
        self.recentProgress: list[Report] = []  # of the last hundred steps; replaced and never changed, for others read it
        self.in_flight: tuple[int, str] | None = None  # the batch that is computed, or failed, and its range
        self._input = run.lake.path(run.lake.catalog.table(run.plan.driving))
        self._watched: positions.Input | None = None  # once the thread runs
        self._until = delta_log.latest(self._input) if available_now else None
        self._stopping, self._error, self._idle = threading.Event(), None, threading.Event()
        self._hurried = threading.Event()  # someone waits until all is read
        self._at: Position | None = None
        self._began = time.monotonic()
        self._thread = InheritableThread(target=self._go_on, name=self.name, daemon=True)

    def start(self) -> "Stepped":
        self._thread.start()
        return self

    @property
    def isActive(self) -> bool:
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": self.isActive and not self._idle.is_set()}

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
        self._stopping.set()
        news.tell(self.run.plan.driving)
        if self._thread.is_alive():
            self.run.lake.spark.sparkContext.cancelJobsWithTag(self._tag)
            self._thread.join(_STOP)
            if self._thread.is_alive():
                told = f"its step has not ended {_STOP:.0f} s after it was cut off; it ends with the process, and is taken again"
                print(f"table={self.name}: {told}", file=sys.stderr, flush=True)

    def processAllAvailable(self) -> None:
        """Returns when all that the input has now is read; raises what the query failed with."""
        latest = delta_log.latest(self._input)
        self._hurried.set()
        news.tell(self.run.plan.driving)
        while self.isActive and (self._at is None or self._at < Position(latest + 1) or not self._idle.is_set()):
            time.sleep(0.02)
        self._hurried.clear()
        if error := self.exception():
            raise error

    @property
    def _tag(self) -> str:
        return f"{self.name}-{id(self)}"

    def _go_on(self) -> None:
        context = self.run.lake.spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", self.name)
        context.addJobTag(self._tag)
        try:
            self._watched = positions.Input(self._input)
            self._at, number = self._resumed()
            while not self._stopping.is_set():
                piece = self._next()
                if piece is None:
                    break
                self._take(piece, number)
                number += 1
        except BaseException as err:  # also the SystemExit of a function that calls sys.exit: the thread ends by it
            if not self._stopping.is_set():
                self._error = StepFailed("".join(traceback.format_exception(err)))
        finally:
            self._idle.set()

    def _resumed(self) -> tuple[Position, int]:
        """Where the table is, and the number of its next batch; one without its line in the journal is run once more for it."""
        run = self.run
        standing = checkpoints.standing(run.lake.settings, run.table)
        last, noted, pending = standing.last, standing.noted, standing.pending
        if last is None or (run.table.keeps and last.generation < run.generation):
            return self._first()
        at, number = self._of(last), last.batch + 1
        if pending and (noted or pending.batch == 0):
            renewed = run.table.keeps and noted and noted.generation < pending.generation
            before = self._of(noted) if noted and not renewed else None
            self._take(self._once_more(before, at), pending.batch)
        return at, number

    def _once_more(self, before: Position | None, at: Position) -> Piece:
        if before is None and self.run.table.keeps:
            return positions.whole(self._input, at.version - 1)
        return positions.between(self._input, before or self._begins(), at)

    def _of(self, commit) -> Position:
        return Position.of(commit.inputs["tables"][self.run.plan.driving])

    def _begins(self) -> Position:
        """Where a table begins: at its seam if it has one, else with the first commit that is kept."""
        seam = self.run.seam
        return Position(seam.version) if seam else positions.begins(self._input)

    def _first(self) -> tuple[Position, int]:
        """The position of a table without any batch, and the number of its next one; a history's first reads all there is."""
        if not self.run.table.keeps:
            return self._begins(), 0
        latest = delta_log.latest(self._input)
        piece = positions.whole(self._input, latest)
        while not piece.files and self._until is None and not self._stopping.wait(_LOOK):
            piece = positions.whole(self._input, latest := delta_log.latest(self._input))
        if piece.files:
            self._take(piece, 0)
        return piece.end, int(bool(piece.files))

    def _next(self) -> Piece | None:
        """What is to be read now, waiting for it; None when there will be nothing more."""
        idle, waiting = time.monotonic(), float("inf")
        while not self._stopping.is_set():
            told, now = news.told(self.run.plan.driving), time.monotonic()
            piece = positions.following(self._input, self._at, self.run.lake.settings.max_files_per_trigger, self._until)
            self._at = piece.end if not piece.files else self._at
            wait = _LOOK
            if piece.files:
                self._watched.check()
                self._idle.clear()
                waiting = min(waiting, now)
                wait = self._began + self.pace.total_seconds() - now
                if self._until is not None or (wait <= 0 and self._worth(piece, now - waiting)):
                    return piece
                wait = wait if wait > 0 else _LOOK
            elif self._until is not None:
                return None
            else:
                self._idle.set()
                if now - idle > _IDLE:
                    self._watched.check()
                    idle = float("inf")
                    self._tell(Report(self.name, -1, _now(), sources=(self._source(self._at),)))
            news.wait(self.run.plan.driving, told, wait)
        return None

    def _worth(self, piece: Piece, waited: float) -> bool:
        """Whether a step would write something, or there is enough to be read, or it has waited long."""
        many = len(piece.files) >= self.run.lake.settings.max_files_per_trigger
        return many or self._hurried.is_set() or waited > _PATIENCE or self.step.due(piece.end.offset(self._watched.identity))

    def _take(self, piece: Piece, number: int) -> None:
        before, started = self._began, time.monotonic()
        self._began = started
        self._idle.clear()
        offset = piece.end.offset(self._watched.identity)
        since = json.dumps(self._at.offset(self._watched.identity)) if self._at else "the start"
        self.in_flight = number, f"batch {number}, offsets from {since} to {json.dumps(offset)}"
        self.step.take(self._rows(piece), number, BatchLog(EPOCH, datetime.now(UTC), offset, piece.rows))
        self.in_flight = None
        self._at = piece.end
        took = time.monotonic() - started
        self._tell(Report(
            self.name, number, _now(), piece.rows, piece.rows / max(started - before, took), round(took * 1000),
            {"addBatch": round(took * 1000)}, (self._source(piece.end),),
        ))  # fmt: skip

    def _rows(self, piece: Piece) -> DataFrame:
        """Those of the files; without those that a batch run wrote, for they replace what went downstream already."""
        lake = self.run.lake
        driving = lake.catalog.table(self.run.plan.driving)
        files = piece.files
        if passed := positions.replaced(self._input, piece):
            files = [file for file in files if file not in passed]
            told = (
                f"table={self.name}, input={driving.name}: {len(passed)} files that it had not read are gone ({passed[0].name}); "
                "a batch run has replaced their rows since, so they are passed over, and what they reach here is PENDING until a "
                "batch run of this table follows"
            )
            print(told, file=sys.stderr, flush=True)
        rows = lake.rows_of(driving, files, plan.stored_schema(lake, driving))
        return rows if self.run.table.keeps else rows.where(F.col(ORIGIN) == "live")

    def _source(self, at: Position) -> Source:
        outstanding = len(positions.following(self._input, at, _OUTSTANDING).files)
        return Source(json.dumps(at.offset(self._watched.identity)), metrics={"numFilesOutstanding": str(outstanding)})

    def _tell(self, report: Report) -> None:
        self.recentProgress = [*self.recentProgress[-99:], report]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
