"""A process of the test kit: a sink publishes a table until it dies, or stands still, at a given point."""

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, cast, overload

from lakehouse.declare.catalog import catalog_of
from lakehouse.declare.decorators import ingest_table, keyed_table
from lakehouse.declare.inputs.kafka import kafka
from lakehouse.declare.table import Table
from lakehouse.declare.targets import Position, RowChange, Sink, Target
from lakehouse.settings import Settings
from lakehouse.sinks.follower import Follower
from lakehouse.storage.lakehouse import Lakehouse

_COLUMNS = "account STRING, n BIGINT, region STRING, amount DECIMAL(9,2), at TIMESTAMP, note STRING"
_LOOK = 0.01  # seconds between two looks for the next version


@dataclass(frozen=True, slots=True)
class End:
    """The point at which a process is killed, or stands still, the `nth` time that it gets there."""

    point: str = ""
    nth: int = 1
    stands_still: bool = False
    after: float = 0.0  # the part of the changes, or of the time of a commit, that it gets to


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a process: it has "opened" the target, "committed" a version, or "failed"; `at` is when that began."""

    kind: str
    at: float
    version: int = -1
    error: str = ""


def live(settings: Settings, target: Target, end: End, pipe: Connection) -> None:
    """Publishes until it is killed, or fails."""
    following = Follower(*declared(settings, target), target)
    following.sink = cast(Sink, _Mortal(following.sink, end, pipe))
    try:
        following.begin()
        while True:
            if following.step() is None:
                time.sleep(_LOOK)
    except Exception as err:
        pipe.send(Event("failed", time.monotonic(), error=f"{type(err).__name__}: {err}"))
        sys.exit(1)


class _Mortal:
    """A sink whose process dies, or stands still, at its end; all else is done by the sink itself."""

    def __init__(self, sink: Sink, end: End, pipe: Connection) -> None:
        self._sink, self._end, self._pipe = sink, end, pipe
        self._visits: Counter[str] = Counter()
        self._took = 0.0  # seconds for the last commit

    def open(self) -> None:
        self._sink.open()
        self._pipe.send(Event("opened", time.monotonic()))
        if self._is_due("opened", 1):  # it opens once
            self._stop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        within = self._is_due("writing")
        if within:
            changes = _Deadly(changes, int(self._end.after * len(changes)))
        self._sink.write(version, changes)
        if self._is_due("written") or within:
            self._stop()

    def commit(self, position: Position) -> None:
        began = time.monotonic()
        if self._is_due("committing"):
            threading.Timer(self._end.after * self._took, _die).start()
        self._sink.commit(position)
        self._took = time.monotonic() - began
        self._pipe.send(Event("committed", began, position.version))
        if self._is_due("committed"):
            self._stop()

    def _is_due(self, point: str, nth: int = 0) -> bool:
        self._visits[point] += 1
        return self._end.point == point and self._visits[point] == (nth or self._end.nth)

    def _stop(self) -> None:
        if self._end.stands_still:
            signal.raise_signal(signal.SIGSTOP)
        else:
            _die()


class _Deadly(Sequence[RowChange]):
    """Changes of a version, of which a process reads a part before it dies."""

    def __init__(self, changes: Sequence[RowChange], survived: int) -> None:
        self._changes, self._survived = changes, survived

    @overload
    def __getitem__(self, place: int) -> RowChange: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[RowChange]: ...
    def __getitem__(self, place: int | slice) -> RowChange | Sequence[RowChange]:
        if not isinstance(place, int) or place in (self._survived, len(self._changes)):
            _die()
        return self._changes[place]

    def __len__(self) -> int:
        return len(self._changes)


def _die() -> None:
    signal.raise_signal(signal.SIGKILL)


def declared(settings: Settings, target: Target) -> tuple[Lakehouse, Table]:
    """Returns a lakehouse with the table of the test kit, and that table."""
    events = kafka("trial-events", schema=_COLUMNS)

    @ingest_table(layer="bronze", event_time="at")
    def trial_events(events: Any) -> Any:
        return events

    @keyed_table(layer="gold", keys=["account"], publish=[target])
    def trial_accounts(trial_events: Any) -> Any:
        return trial_events

    module = ModuleType(__name__)
    vars(module).update(events=events, trial_events=trial_events, trial_accounts=trial_accounts)
    catalog = catalog_of([module])
    return Lakehouse(settings, catalog), catalog.table("trial_accounts")
