"""Targets that act: for each row that a table adds something is done once, such as a request or a mail.

What was done cannot be taken back, and no transaction holds it and a position. So each action has an
id that is the same whenever it is tried, and what came of it is on disk before the next one begins. A
process that dies repeats at most the action that it was at, with the same id.
"""

import hashlib
import json
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from lakehouse.declare.inputs.source_checks import one_of
from lakehouse.declare.targets import Action, Change, Corrections, Position, RowChange, Sink, Target
from lakehouse.errors import DeclarationError, SinkAway, SinkError
from lakehouse.settings import Settings
from lakehouse.sinks.formats.encoding import key_of, value_of
from lakehouse.storage.log.action_log import ActionLog, Line, Outcome

if TYPE_CHECKING:
    import pyarrow as pa

Begin = Literal["next", "all"]
_KEPT = timedelta(days=30)  # what was done stays in the log for so long
_SHORTENED = 5_000  # commits, after which the log is made shorter
_RATE = re.compile(r"(\d+)/(second|minute|hour)")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600}
_NAP = 0.5  # seconds between two looks whether to go on, while the rate makes it wait
_LOOK = 30.0  # seconds between two looks at what is refused


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one attempt. "failed": it may be tried again; "refused": it will be refused again."""

    outcome: Outcome
    said: str


class Performer(ABC):
    """Performs actions for one process. After `SinkAway`, which says that nobody answered, it is asked again and again."""

    def check(self, columns: Collection[str]) -> None:  # noqa: B027 - not each one names columns
        """Raises SinkError if it needs a column that the table does not have."""

    @abstractmethod
    def perform(self, action: Action) -> Answer: ...

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ActionTarget(Target):
    """A target that acts on rows.

    :param on: the changes of rows for which it acts.
    :param begin: "next": on what comes after the version that it finds first; "all": on the rows of that one, too.
    :param rate: so many actions at most, as "5/second"; empty: no limit.
    :param attempts: failed ones after which an action counts as refused.
    """

    on: tuple[Change, ...]
    begin: Begin
    rate: str
    attempts: int

    accepted_corrections: ClassVar[tuple[Corrections, ...]] = ("send", "ignore")
    reads_back: ClassVar[bool] = False

    def __post_init__(self) -> None:
        named = f"target={self.name}"
        if self.corrections == "hold":
            raise DeclarationError(
                f"{named}, corrections='hold': an action leaves nothing to compare and send later; take 'send' or 'ignore'"
            )
        Target.__post_init__(self)  # super() does not know a class that slots=True made again
        if not self.on:
            raise DeclarationError(f"{named}, on=[]: at least one kind of change; give one")
        for kind in self.on:
            one_of("on", kind, get_args(Change))
        one_of("begin", self.begin, get_args(Begin))
        if self.rate and not (_RATE.fullmatch(self.rate) and int(self.rate.split("/")[0])):
            raise DeclarationError(
                f"{named}, rate={self.rate!r}: a whole number above 0 per second, minute or hour; write for example '5/second'"
            )
        if self.attempts < 1:
            raise DeclarationError(
                f"{named}, attempts={self.attempts}: at least one attempt; raise it"
            )

    @abstractmethod
    def performer(self) -> Performer:
        """Returns the performer of its actions. Raises SinkError if the environment lacks what that needs."""

    def sink(self, settings: Settings, table: str) -> "ActionSink":
        return ActionSink(settings, self, table)


class Pace:
    """Lets an action happen at most so often: evenly, without a burst."""

    def __init__(
        self,
        rate: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        number, _, unit = rate.partition("/")
        self._gap = _SECONDS[unit] / int(number) if rate else 0.0
        self._clock, self._sleep, self._next = clock, sleep, 0.0

    def wait(self, going_on: Callable[[], None]) -> None:
        """Waits for its turn; `going_on` may raise meanwhile."""
        while (left := self._next - self._clock()) > 0:
            going_on()
            self._sleep(min(left, _NAP))
        self._next = self._clock() + self._gap


class ActionSink(Sink):
    """Acts for the rows of a table."""

    def __init__(self, settings: Settings, target: ActionTarget, table: str) -> None:
        self._target, self._table = target, table
        self._log, self._pace = ActionLog(settings, target.name), Pace(target.rate)
        self._performer: Performer | None = None
        self._epoch = 0
        self._begins = False
        self._before: dict[str, Counter[Outcome]] = {}  # of the version that is under way
        self._counts: Counter[str] = Counter()
        self._looked = 0.0
        self._commits = 0

    def open(self) -> None:
        self._performer = self._target.performer()
        self._epoch = self._log.take_over()
        self._log.shorten(datetime.now(UTC) - _KEPT)
        self._before = self._log.since_position()
        self._begins = self._log.position() is None
        self._counts["refused"] = len(self._log.refused())

    def position(self) -> Position | None:
        return self._log.position()

    def columns(self, schema: "pa.Schema") -> None:
        self._opened.check(schema.names)

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        if self._begins and self._target.begin == "next":
            self._counts["left out"] += len(changes)
            return
        for action in actions(self._target, self._table, version, changes, self._begins):
            self.going_on()
            before = self._before.get(action.id, Counter())
            if not before["done"] and not before["refused"]:
                self._perform(action, before["failed"])

    def commit(self, position: Position) -> None:
        self._log.commit(self._epoch, position)
        self._begins, self._before = False, {}
        self._commits += 1
        if self._commits % _SHORTENED == 0:
            self._log.shorten(datetime.now(UTC) - _KEPT)

    def rows(self, version: int) -> Iterator[tuple[str, str, bool]]:
        raise SinkError(_no_rows(self._target.name))

    def remarks(self) -> Sequence[str]:
        # another process may have performed it since
        if self._counts["refused"] and time.monotonic() - self._looked > _LOOK:
            self._counts["refused"] = len(self._log.refused())
            self._looked = time.monotonic()
        meanings = {
            "done": "{} done",
            "refused": f"{{}} refused (`lakehouse publish refused {self._target.name}`)",
            "left out": "{} rows that were there before are left out",
        }
        return [text.format(n) for what, text in meanings.items() if (n := self._counts[what])]

    def close(self) -> None:
        if self._performer:
            self._performer.close()

    @property
    def _opened(self) -> Performer:
        assert self._performer, "the follower opens a sink first"
        return self._performer

    def _perform(self, action: Action, failed: int) -> None:
        self._pace.wait(self.going_on)
        self._log.check(self._epoch)
        answer = self._opened.perform(action)
        last = answer.outcome == "failed" and failed + 1 >= self._target.attempts
        outcome: Outcome = "refused" if last else answer.outcome
        self._log.add(Line(action, outcome, answer.said, datetime.now(UTC)))
        self._counts[outcome] += 1
        if outcome == "failed":
            raise SinkAway(
                f"target={self._target.name}, id={action.id}: {answer.said} (attempt {failed + 1} of {self._target.attempts})"
            )


def actions(
    target: ActionTarget, table: str, version: int, changes: Sequence[RowChange], first: bool
) -> Iterator[Action]:
    """Yields the actions for the changes of a version; their ids are the same whenever they are asked for.

    `first`: the changes are all rows of the table. The heir of a process that dies then may find a later version first.
    """
    counts: Counter[str] = Counter()
    for change in changes:
        if change.kind not in target.on:
            continue
        key, value = key_of(change.row, target.key), value_of(change.row)
        identity = [target.name, table, "first" if first else version, change.kind, key, value]
        text = json.dumps(identity)
        counts[text] += 1  # a row may be there twice
        id = hashlib.sha256(f"{text} {counts[text]}".encode()).hexdigest()[:32]
        row = dict.fromkeys(change.row) | json.loads(value)
        yield Action(id, table, version, change.kind, key, row)


def refused(settings: Settings, target: Target) -> list[Line]:
    """Returns the actions that were refused and not done since, the first one first.

    Raises SinkError for a target that does not act.
    """
    return ActionLog(settings, _acting(target).name).refused()


def retry(settings: Settings, target: Target, ids: Collection[str] = ()) -> Counter[Outcome]:
    """Performs refused actions again, all or those of some ids, beside a follower that goes on; returns how many ended how.

    Raises SinkError for a target that does not act or an id that is not refused, SinkAway if nobody answers.
    """
    acting = _acting(target)
    log = ActionLog(settings, acting.name)
    performer = acting.performer()
    pace = Pace(acting.rate)
    waiting = {line.action.id: line.action for line in log.refused()}
    if unknown := sorted(set(ids) - waiting.keys()):
        raise SinkError(
            f"target={acting.name}, id={unknown[0]}: no such action is refused; see `lakehouse publish refused {acting.name}`"
        )
    counts: Counter[Outcome] = Counter()
    try:
        for action in waiting.values():
            if ids and action.id not in ids:
                continue
            pace.wait(lambda: None)
            answer = performer.perform(action)
            outcome: Outcome = "done" if answer.outcome == "done" else "refused"
            log.add(Line(action, outcome, answer.said, datetime.now(UTC)))
            counts[outcome] += 1
    finally:
        performer.close()
    return counts


def check_reads_back(target: Target) -> None:
    """Raises SinkError for a target whose rows cannot be compared with its table."""
    if not target.reads_back:
        raise SinkError(_no_rows(target.name))


def _no_rows(name: str) -> str:
    return f"target={name}: an action leaves no row to compare; `lakehouse publish refused {name}` names what was not done"


def _acting(target: Target) -> ActionTarget:
    if isinstance(target, ActionTarget):
        return target
    raise SinkError(
        f"target={target.name}: it holds rows, and refuses none; `lakehouse reconcile sink {target.name}` compares them"
    )
