"""The steps of a table that reads another table: the files that its commits added, commit by commit."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.declare.columns import ORIGIN
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING, text
from lakehouse.storage.delta import delta_log
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.session import nullable
from lakehouse.stream import news, positions
from lakehouse.stream.advance import IDLE, Source, StepInput, StepLoop, Take
from lakehouse.stream.consistent import Cuts
from lakehouse.stream.micro_batch import BatchLog, StreamRun
from lakehouse.stream.positions import Piece, Position
from lakehouse.transform import plan

_log = logging.getLogger(__name__)

_PATIENCE = 10.0  # seconds that input waits for more at most, before a step with nothing to write notes its position
_MEETING = 30.0  # seconds for which inputs have no versions that fit each other, until that shows
_FAR = timedelta(minutes=10)  # of event time, between inputs
_NOTHING = Piece((), 0, Position(0))  # for an input without a version that can be read yet
_OUTSTANDING = 1_000  # waiting files that are counted at most

Positions = Mapping[str, Position]  # by input
Due = Callable[[Mapping[str, Any]], bool]
"""Returns True if there is something to write once the input is read up to an offset.

If not, a step with rows waits for more, and one without rows is not taken.
"""


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of the inputs that one step reads."""

    of: Mapping[str, Piece]
    quiet: timedelta | None = (
        None  # set for a step without rows, because the inputs have gone on in time
    )

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.of.values())

    @property
    def files(self) -> int:
        return sum(len(piece.files) for piece in self.of.values())

    @property
    def end(self) -> Positions:
        return {name: piece.end for name, piece in self.of.items()}


@dataclass(frozen=True)
class InputRows:
    """The rows of one input that a step reads."""

    run: StreamRun
    table: Table
    files: Sequence[Path]

    @property
    def columns(self) -> StructType:
        return nullable(plan.plan_of(self.run.session, self.table).schema)

    @cached_property
    def here(self) -> pa.Table | None:
        """Returns the rows of the files, if this process has just written them."""
        if not self.files:
            return to_arrow_schema(self.columns, timezone="UTC").empty_table()
        return self.run.session.rows_here(self.files, self.columns)

    @cached_property
    def frame(self) -> DataFrame:
        session = self.run.session
        rows = session.rows_of(self.table, self.files, plan.plan_of(session, self.table).schema)
        return self.written_by_stream(rows)

    def written_by_stream(self, rows: DataFrame) -> DataFrame:
        """Returns the rows that the stream wrote: a batch run's went downstream already. A keyed or versioned table reads all."""
        return rows if self.run.table.kind.is_upserted else rows.where(F.col(ORIGIN) == "stream")


def frames(rows: Mapping[str, InputRows]) -> dict[str, DataFrame]:
    return {name: each.frame for name, each in rows.items()}


class TableInput(StepInput[Pieces]):
    """The input of a table: the commits of its inputs with event time.

    A commit in this process wakes the thread; commits of other processes are found by polling.
    """

    def __init__(
        self,
        run: StreamRun,
        take: Take,
        due: Due = lambda offset: True,
        quiet_due: Due = lambda offset: False,
    ) -> None:
        self.run, self._take, self.name = run, take, run.table.name
        self._due, self._quiet_due = due, quiet_due
        self._looked = (-1, float("-inf"))  # the last quiet check: commits announced, and its time
        catalog = run.session.catalog
        self._paths = {name: run.session.path(catalog.table(name)) for name in run.plan.followed}
        # a versioned table is read as it is, once it is far enough
        self._awaited = [*self._paths, *(t.name for t in catalog.versioned_inputs(run.table))]
        self._watched: dict[str, positions.Input] = {}  # once the thread runs
        self._until: dict[str, int] | None = None

    def attach(self, loop: StepLoop[Pieces]) -> None:
        super().attach(loop)
        self._until = self._versions() if loop.available_now else None

    def _versions(self) -> dict[str, int]:
        return {name: delta_log.latest(path) for name, path in self._paths.items()}

    def wake(self) -> None:
        news.announce(self.run.plan.driving)

    def latest(self) -> Positions:
        return {name: Position(version + 1) for name, version in self._versions().items()}

    def is_past(self, position: Positions) -> bool:
        return self.loop.at is not None and all(
            self.loop.at[name] >= position[name] for name in position
        )

    def resume(self) -> tuple[Positions, int]:
        """Returns the position of the table, and the number of its next batch.

        A batch without its line in the commit log is run once more to write it.
        """
        self._watched = {name: positions.Input(path) for name, path in self._paths.items()}
        run = self.run
        standing = run.state.standing
        last, noted, pending = standing.last, standing.noted, standing.pending
        if last is None or (run.table.kind.is_upserted and last.generation < run.generation):
            return self._first()
        at, number = self._of(last), last.batch + 1
        if pending and (noted or pending.batch == 0):
            renewed = run.table.kind.is_upserted and noted and noted.generation < pending.generation
            before = self._of(noted) if noted and not renewed else None
            self.loop.step(self._once_more(before, at), pending.batch)
        return at, number

    def _once_more(self, before: Positions | None, at: Positions) -> Pieces:
        if before is None and self.run.table.kind.is_upserted:
            return Pieces(
                {n: positions.whole(path, at[n].version - 1) for n, path in self._paths.items()}
            )
        begins = before or self._begins()
        return Pieces(
            {n: positions.between(path, begins[n], at[n]) for n, path in self._paths.items()}
        )

    def _of(self, commit) -> Positions:
        return {name: Position.of(commit.inputs["tables"][name]) for name in self._paths}

    def _begins(self) -> Positions:
        """Returns where a table begins: at its handover if it has one, else with the first commits that are kept."""
        if handover := self.run.state.handover:
            return {handover.input: Position(handover.version)}
        return {name: positions.begins(path) for name, path in self._paths.items()}

    def _first(self) -> tuple[Positions, int]:
        """Returns the position of a table without any batch, and the number of its next one.

        The first batch of a keyed or versioned table reads all there is. Inputs that have begun and hold no row are read,
        too: the tables downstream learn that this one is complete so far.
        """
        if not self.run.table.kind.is_upserted:
            return self._begins(), 0
        pieces = self._all_there_is()
        while not (begins := self._begins_with(pieces)):
            if self._until is not None or self.loop.stopping.wait(self.run.session.look):
                break
            pieces = self._all_there_is()
        if begins:
            self.loop.step(pieces, 0)
        return pieces.end, int(begins)

    def _begins_with(self, pieces: Pieces) -> bool:
        return bool(pieces.files) or self.run.complete(self.offset(pieces.end)) is not None

    def _all_there_is(self) -> Pieces:
        paths = self._paths.items()
        return Pieces({n: positions.whole(path, delta_log.latest(path)) for n, path in paths})

    def _following(self) -> Pieces:
        """Returns what comes next of each input."""
        most, until = self.run.session.settings.max_files_per_trigger, self._until or {}
        return Pieces(
            {
                name: positions.following(path, self.loop.at[name], most, until.get(name))
                for name, path in self._paths.items()
            }
        )

    def _check_inputs(self) -> None:
        for watched in self._watched.values():
            watched.check()

    def next_batch(self) -> Pieces | None:
        idle, waiting, look = time.monotonic(), float("inf"), self.run.session.look
        while not self.loop.stopping.is_set():
            seen, now = news.commits(self._awaited), time.monotonic()
            pieces = self._following()
            # move past commits without files
            self.loop.at = {
                name: self.loop.at[name] if piece.files else piece.end
                for name, piece in pieces.of.items()
            }
            wait = look
            if pieces.files:
                self._check_inputs()
                self.loop.idle.clear()
                waiting = min(waiting, now)
                wait = self.loop.due_in
                if self._until is not None or (wait <= 0 and self._worth(pieces, now - waiting)):
                    return pieces
                wait = wait if wait > 0 else look
            elif self._is_quiet_due(seen, now):
                return Pieces(pieces.of, quiet=timedelta(0))
            elif self._until is not None:
                return None
            else:
                self.loop.idle.set()
                if now - idle > IDLE:
                    self._check_inputs()
                    idle = float("inf")
                    self.loop.report_idle()
            news.wait(self._awaited, seen, wait)
        return None

    def _is_quiet_due(self, announced: int, now: float) -> bool:
        """Returns True if the inputs have gone on in time without rows, and there is something to write for it.

        A commit in this process makes the check due; commits of other processes are found by polling.
        """
        if announced == self._looked[0] and now < self._looked[1] + _PATIENCE:
            return False
        self._looked = announced, now
        self.loop.trouble = self._held_back()
        return self._quiet_due(self.offset(self.loop.at))

    def _held_back(self) -> str:
        """Returns which input the table waits for, if another is far ahead of it: else nobody would know why it stands."""
        settings, catalog = self.run.session.settings, self.run.session.catalog
        ahead = {
            name: frontier(settings, catalog.table(name)) or BEGINNING for name in self._awaited
        }
        last = min(ahead, key=lambda name: ahead[name])
        furthest = max(ahead.values())
        if furthest - ahead[last] < _FAR:
            return ""
        reached = text(ahead[last]) if ahead[last] > BEGINNING else "nothing, for no row has come"
        return (
            f"table={self.name}, input={last}: it is complete up to {reached}, another up to {text(furthest)}, and the table "
            "goes as far as all of its inputs; send to it, or give a topic that may be silent a quiet_timeout"
        )

    def _worth(self, pieces: Pieces, waited: float) -> bool:
        """Returns True if a step would write something, there is enough to read, it has waited long, or a caller waits."""
        many = pieces.files >= self.run.session.settings.max_files_per_trigger
        return (
            many
            or self.loop.hurried.is_set()
            or waited > _PATIENCE
            or self._due(self.offset(pieces.end))
        )

    def offset(self, position: Positions) -> dict[str, Any]:
        return {name: at.offset(self._watched[name].identity) for name, at in position.items()}

    def take(self, piece: Pieces, number: int, log: BatchLog) -> None:
        self._take(self._rows(piece), number, log)

    def _rows(self, piece: Pieces) -> Mapping[str, Any]:
        return {name: self._rows_of(name, each) for name, each in piece.of.items()}

    def _rows_of(self, name: str, piece: Piece) -> InputRows:
        """Returns the rows of the files, without files that are gone because a batch run has replaced their rows.

        `InputRows` leaves out the rows that a batch run wrote: they replace what went downstream already.
        """
        session = self.run.session
        table = session.catalog.table(name)
        files = list(piece.files)
        if passed := positions.replaced(self._paths[name], piece):
            files = [file for file in files if file not in passed]
            message = (
                f"table={self.name}, input={name}: {len(passed)} files that it had not read are gone ({passed[0].name}); "
                "a batch run has replaced their rows since, so they are passed over, and what they reach here is PENDING until a "
                "batch run of this table follows"
            )
            _log.warning(message)
        return InputRows(self.run, table, files)

    def reported(self, position: Positions) -> tuple[Source, ...]:
        return tuple(self._source(name, at) for name, at in position.items())

    def _source(self, name: str, at: Position) -> Source:
        outstanding = len(positions.following(self._paths[name], at, _OUTSTANDING).files)
        offset = at.offset(self._watched[name].identity)
        return Source(json.dumps(offset), metrics={"numFilesOutstanding": str(outstanding)})


@dataclass(frozen=True, slots=True)
class Moved:
    """The change of an input in a step: the versions before and after it, and the files of the commits between."""

    since: int | None  # None: the step reads the input whole
    until: int
    files: tuple[Path, ...]


class ChangeInput(TableInput):
    """The input of a table: all that changes in its inputs, also where rows are replaced.

    Inputs that are computed from one ingest table are read at versions that have read the same of it.
    """

    def __init__(self, run: StreamRun, take: Take, *due: Due) -> None:
        super().__init__(run, take, *due)
        self._cuts = Cuts.of(run.session, run.table)
        self._met = time.monotonic()  # when the inputs had versions that fit each other

    def _all_there_is(self) -> Pieces:
        ends = self._ends(dict.fromkeys(self._paths, -1))
        return Pieces(
            {
                name: positions.whole(path, ends[name]) if ends[name] >= 0 else _NOTHING
                for name, path in self._paths.items()
            }
        )

    def _following(self) -> Pieces:
        ends = self._ends({name: at.version - 1 for name, at in self.loop.at.items()})
        return Pieces(
            {
                name: positions.changed(path, self.loop.at[name], ends[name])
                for name, path in self._paths.items()
            }
        )

    def _ends(self, since: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the versions up to which the inputs are read now, so that they fit each other."""
        most = self._until or self._versions()
        most = {name: max(most[name], since[name]) for name in most}
        ends = self._cuts.newest(since, most)
        now = time.monotonic()
        self._met = now if ends != since or most == since else self._met
        return ends

    def _held_back(self) -> str:
        """Returns the same as for other tables; or that the inputs do not meet, because each goes on by steps of its own."""
        waited = round(time.monotonic() - self._met)
        if waited < _MEETING:
            return super()._held_back()
        shared = sorted({name for each in self._cuts.shared.values() for name in each})
        return (
            f"table={self.name}, inputs={', '.join(self._paths)}: for {waited} s no versions of them have read the same of "
            f"{', '.join(shared)}, and it reads none that have not; they meet when their streams have caught up; give the "
            "pipeline more cores, or a slower pace (fresh_within)"
        )

    def _once_more(self, before: Positions | None, at: Positions) -> Pieces:
        # what is in the table already is not computed again
        return Pieces({name: Piece((), 0, position) for name, position in at.items()})

    def _rows(self, piece: Pieces) -> Mapping[str, Moved]:
        return {
            name: Moved(
                self.loop.at[name].version - 1 if self.loop.at else None,
                each.end.version - 1,
                each.files,
            )
            for name, each in piece.of.items()
        }
