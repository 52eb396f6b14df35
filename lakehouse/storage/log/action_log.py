"""The outcome of each action of a target, line by line, and the position, in one file: it survives the process.

{"position": {...}}                                     all of that version, and of earlier ones, is done
{"action": {...}, "outcome": "done", "said": "200", "at": "..."}
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from lakehouse.declare.targets import Action, Position
from lakehouse.errors import SinkError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.disk.files import read_value, replace_file
from lakehouse.storage.disk.notes import Notes
from lakehouse.storage.disk.typed_values import typed
from lakehouse.storage.log import published_position

Outcome = Literal["done", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Line:
    """The outcome of an action. "failed" is an attempt that is repeated; a later line of the same id has its outcome."""

    action: Action
    outcome: Outcome
    said: str
    at: datetime


class ActionLog:
    """The log of one target. One process at a time adds to it: the one that took it over last."""

    def __init__(self, settings: Settings, target: str) -> None:
        self._settings, self._target = settings, target
        self._path = layout.actions(settings, target, "log.jsonl")
        self._notes: Notes[Line | Position] = Notes(self._path, _decoded)

    def take_over(self) -> int:
        """Locks out the former writer, and returns the epoch by which this process adds to the log.

        :raises SinkError: if the log is gone though versions were published.
        """
        with self._alone():
            noted = published_position.noted(self._settings, self._target)
            if noted and not self._path.exists():
                raise SinkError(
                    f"target={self._target}, file={self._path}: it says what was done up to version {noted.version}, and is "
                    "gone, so actions could be done again or left out; put it back from a copy, or remove "
                    f"{layout.published(self._settings, self._target)}, and the target begins as a new one"
                )
            # the file may be gone, and no epoch may come again that a process has that sleeps
            epoch = max(self._epoch() + 1, time.time_ns() // 1_000_000)
            replace_file(layout.actions(self._settings, self._target, "epoch.json"), epoch)
            return epoch

    def check(self, epoch: int) -> None:
        """Raises SinkError if another process has taken the log over."""
        if (now := self._epoch()) != epoch:
            raise SinkError(
                f"target={self._target}, epoch={epoch}: another process has taken the target over (epoch {now}); this one ends"
            )

    def add(self, line: Line) -> None:
        """Adds the outcome of an action, even if another process has taken the log over: the action was done."""
        with self._alone():
            self._notes.append(line)

    def commit(self, epoch: int, position: Position) -> None:
        """Adds the position. Raises SinkError if another process has taken the log over."""
        with self._alone():
            self.check(epoch)
            self._notes.append({"position": position})

    def position(self) -> Position | None:
        return next(
            (note for note in self._notes.newest_first() if isinstance(note, Position)), None
        )

    def since_position(self) -> dict[str, Counter[Outcome]]:
        """Returns the outcomes so far of the actions since the last position, by their ids."""
        outcomes: dict[str, Counter[Outcome]] = {}
        for note in self._notes.newest_first():
            if isinstance(note, Position):
                break
            outcomes.setdefault(note.action.id, Counter())[note.outcome] += 1
        return outcomes

    def lines(self) -> Iterator[Line]:
        """Returns all lines of actions, the latest first."""
        return (note for note in self._notes.newest_first() if isinstance(note, Line))

    def refused(self) -> list[Line]:
        """Returns the actions that were refused and not done since, in order."""
        last: dict[str, Line] = {}
        for line in self.lines():
            last.setdefault(line.action.id, line)
        return [line for line in reversed(last.values()) if line.outcome == "refused"]

    def shorten(self, before: datetime) -> None:
        """Removes lines of actions done before an instant. Refused actions stay, and all lines since the last position."""
        with self._alone():
            refused = {line.action.id for line in self.refused()}
            kept, committed, left_out = list[object](), False, False
            for note in self._notes.newest_first():
                if isinstance(note, Position):
                    if not committed:
                        kept.append({"position": note})
                    left_out |= committed
                    committed = True
                elif not committed or note.at >= before or note.action.id in refused:
                    kept.append(note)
                else:
                    left_out = True
            if left_out:
                self._notes.replace(reversed(kept))

    def _epoch(self) -> int:
        path = layout.actions(self._settings, self._target, "epoch.json")
        return read_value(path, int, "the next process counts from one") or 0

    def _alone(self) -> AbstractContextManager[object]:
        return locks.alone(layout.actions(self._settings, self._target, "lock"))


def _decoded(given: Mapping[str, Any]) -> Line | Position:
    if "position" in given:
        return typed(Position, given["position"])
    return typed(Line, given)
