"""The steps of a table that reads another table: the files that its commits added, commit by commit."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.columns import ORIGIN
from lakehouse.storage import checkpoints, delta_log
from lakehouse.stream import news, positions
from lakehouse.stream.advance import IDLE, LOOK, Source, Stepped, Take
from lakehouse.stream.micro_batch import StreamRun
from lakehouse.stream.positions import Piece, Position
from lakehouse.transform import plan

_log = logging.getLogger(__name__)

_PATIENCE = 10.0  # seconds that input waits at most for more, before a step that has nothing to write notes how far it is
_OUTSTANDING = 1_000  # files that wait are counted up to so many

Due = Callable[[Mapping[str, Any]], bool]
"""Whether there is something to write once the input is read up to an offset.

If not, a step with rows waits for more, and one without rows is not taken.
"""


class TableSteps(Stepped[Piece]):
    """Fills a table from the commits of its driving input. A commit of this process wakes it.

    Others it looks for.
    """

    def __init__(
        self,
        run: StreamRun,
        take: Take,
        due: Due = lambda offset: True,
        quiet_due: Due = lambda offset: False,
        *,
        available_now: bool = False,
        pace: timedelta = timedelta(0),
    ) -> None:
        super().__init__(run, take, available_now=available_now, pace=pace)
        self._due, self._quiet_due = due, quiet_due
        self._looked = (-1, float("-inf"))  # for that: how many commits were announced, and when
        self._input = run.lake.path(run.lake.catalog.table(run.plan.driving))
        self._watched: positions.Input | None = None  # once the thread runs
        self._until = delta_log.latest(self._input) if available_now else None

    @property
    def _seen(self) -> positions.Input:
        """The input as it is watched: from when the thread runs."""
        assert self._watched is not None
        return self._watched

    def _wake(self) -> None:
        news.announce(self.run.plan.driving)

    def _latest(self) -> Position:
        return Position(delta_log.latest(self._input) + 1)

    def _is_past(self, position: Position) -> bool:
        return self._at is not None and self._at >= position

    def _resumed(self) -> tuple[Position, int]:
        """Where the table is, and the number of its next batch.

        One without its line in the commit log is run once more for it.
        """
        self._watched = positions.Input(self._input)
        run = self.run
        standing = checkpoints.standing(run.lake.settings, run.table)
        last, noted, pending = standing.last, standing.noted, standing.pending
        if last is None or (run.table.keeps and last.generation < run.generation):
            return self._first()
        at, number = self._of(last), last.batch + 1
        if pending and (noted or pending.batch == 0):
            renewed = run.table.keeps and noted and noted.generation < pending.generation
            before = self._of(noted) if noted and not renewed else None
            self._step(self._once_more(before, at), pending.batch)
        return at, number

    def _once_more(self, before: Position | None, at: Position) -> Piece:
        if before is None and self.run.table.keeps:
            return positions.whole(self._input, at.version - 1)
        return positions.between(self._input, before or self._begins(), at)

    def _of(self, commit) -> Position:
        return Position.of(commit.inputs["tables"][self.run.plan.driving])

    def _begins(self) -> Position:
        """Where a table begins: at its handover if it has one, else with the first commit that is kept."""
        handover = self.run.handover
        return Position(handover.version) if handover else positions.begins(self._input)

    def _first(self) -> tuple[Position, int]:
        """The position of a table without any batch, and the number of its next one.

        A versioned table's first reads all there is.
        """
        if not self.run.table.keeps:
            return self._begins(), 0
        latest = delta_log.latest(self._input)
        piece = positions.whole(self._input, latest)
        while not piece.files and self._until is None and not self._stopping.wait(LOOK):
            piece = positions.whole(self._input, latest := delta_log.latest(self._input))
        if piece.files:
            self._step(piece, 0)
        return piece.end, int(bool(piece.files))

    def _next(self) -> Piece | None:
        idle, waiting = time.monotonic(), float("inf")
        while not self._stopping.is_set():
            seen, now = news.commits(self.run.plan.driving), time.monotonic()
            piece = positions.following(
                self._input, self._at, self.run.lake.settings.max_files_per_trigger, self._until
            )
            self._at = piece.end if not piece.files else self._at
            wait = LOOK
            if piece.files:
                self._seen.check()
                self._idle.clear()
                waiting = min(waiting, now)
                wait = self._began + self.pace.total_seconds() - now
                if self._until is not None or (wait <= 0 and self._worth(piece, now - waiting)):
                    return piece
                wait = wait if wait > 0 else LOOK
            elif self._is_quiet_due(seen, now):
                return Piece((), 0, self._at, quiet=timedelta(0))
            elif self._until is not None:
                return None
            else:
                self._idle.set()
                if now - idle > IDLE:
                    self._seen.check()
                    idle = float("inf")
                    self._report_idle()
            news.wait(self.run.plan.driving, seen, wait)
        return None

    def _is_quiet_due(self, announced: int, now: float) -> bool:
        """Whether the input has gone on in time without rows, and there is something to write for it.

        A commit of this process says when to look. Of others one hears by looking.
        """
        if announced == self._looked[0] and now < self._looked[1] + _PATIENCE:
            return False
        self._looked = announced, now
        return self._quiet_due(self._offset(self._at))

    def _worth(self, piece: Piece, waited: float) -> bool:
        """Whether a step would write something, or there is enough to be read, or it has waited long."""
        many = len(piece.files) >= self.run.lake.settings.max_files_per_trigger
        return (
            many
            or self._hurried.is_set()
            or waited > _PATIENCE
            or self._due(self._offset(piece.end))
        )

    def _offset(self, position: Position) -> dict[str, Any]:
        return position.offset(self._seen.identity)

    def _rows(self, piece: Piece) -> DataFrame:
        """Those of the files.

        Without those that a batch run wrote, for they replace what went downstream already.
        """
        lake = self.run.lake
        driving = lake.catalog.table(self.run.plan.driving)
        files = list(piece.files)
        if passed := positions.replaced(self._input, piece):
            files = [file for file in files if file not in passed]
            message = (
                f"table={self.name}, input={driving.name}: {len(passed)} files that it had not read are gone ({passed[0].name}); "
                "a batch run has replaced their rows since, so they are passed over, and what they reach here is PENDING until a "
                "batch run of this table follows"
            )
            _log.warning(message)
        rows = lake.rows_of(driving, files, plan.stored_schema(lake, driving))
        return rows if self.run.table.keeps else rows.where(F.col(ORIGIN) == "stream")

    def _source(self, position: Position) -> Source:
        outstanding = len(positions.following(self._input, position, _OUTSTANDING).files)
        return Source(
            json.dumps(self._offset(position)), metrics={"numFilesOutstanding": str(outstanding)}
        )
