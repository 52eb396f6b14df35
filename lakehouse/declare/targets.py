"""Targets that a table is published to: the declaration (`Target`), and the writer (`Sink`).

A target of your own is a subclass of `Target` whose `sink` returns a subclass of `Sink`. The follower
(`lakehouse.sinks.follower`) calls a sink in this order, and nothing else:

    open, position, then for each version of the table: columns (where they are new), write, commit
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar, get_args

from lakehouse.declare.inputs.source_checks import one_of
from lakehouse.errors import DeclarationError
from lakehouse.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

Corrections = Literal["send", "hold", "ignore"]
Change = Literal["insert", "update", "delete"]
Fault = Literal["missing file", "damaged file", "foreign file"]
Row = Mapping[str, object]


T = TypeVar("T", bound=str)


def columns_of(given: T | Sequence[T]) -> tuple[T, ...]:
    """Returns what a target is declared with, given one or several: columns, kinds of change, recipients."""
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row that a version of a table adds, changes or removes.

    :param kind: "insert", "update" (the key existed, with another row) or "delete".
    :param row: the row by its columns; for a deletion, the row as it was.
    """

    kind: Change
    row: Row


@dataclass(frozen=True, slots=True)
class Action:
    """An action for one row, done by a target such as `webhook` or `mail`.

    :param id: 32 hexadecimal digits, the same at every attempt.
    :param table: the table that is published.
    :param version: its Delta version, which added, changed or removed the row.
    :param change: "insert", "update" or "delete".
    :param key: of the row, as text.
    :param row: by its columns, null as None. Decimals and instants are texts, as in a topic.
    """

    id: str
    table: str
    version: int
    change: Change
    key: str
    row: Row


@dataclass(frozen=True, slots=True)
class Position:
    """The table and version that a target holds.

    :param table: the Delta id of the table; a table that is made again has another one.
    :param version: the last Delta version that was written.
    :param written: when that version was committed. A restored table may have another version of the same number.
    :param held: versions up to it whose corrections are held back, by `corrections="hold"`.
    """

    table: str
    version: int
    written: str = ""
    held: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Returns the position as a sink stores it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Position":
        """Reads what `to_json` wrote.

        :raises ValueError: for anything else.
        """
        try:
            fields = json.loads(text)
            held = tuple(int(version) for version in fields["held"])
            return cls(str(fields["table"]), int(fields["version"]), str(fields["written"]), held)
        except (KeyError, TypeError) as err:
            raise ValueError(f"{err!r} in {text!r}") from err


class Sink(ABC):
    """Writes the versions of one table to one target, for one process at a time.

    A sink raises `SinkAway` if the target does not answer: the follower opens it again until it does. Any other error
    ends the process; the next one opens the target again. Either goes on from the position.

    A `write` that may take minutes calls `going_on` again and again, which shows that the process works. It raises
    `lakehouse.stopping.Stopped` if the process is to end. Uncommitted rows are written again later.
    """

    going_on: Callable[[], None] = staticmethod(lambda: None)

    @abstractmethod
    def open(self) -> None:
        """Claims the target: ends what an earlier process left open, and refuses that process from now on."""

    @abstractmethod
    def position(self) -> Position | None:
        """Returns the committed position, read after `open`; None if nothing was ever committed."""

    def columns(self, schema: "pa.Schema") -> None:  # noqa: B027 - most targets need none
        """Receives the columns of the rows to come, before the first of them and where they change."""

    @abstractmethod
    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        """Writes the changes of a version, in their order; no reader sees them before `commit`."""

    @abstractmethod
    def commit(self, position: Position) -> None:
        """Makes the written rows and the position visible, both or neither."""

    @abstractmethod
    def rows(self, version: int) -> Iterator[tuple[str, str, bool]]:
        """Yields key, row and origin as of a version; `lakehouse.sinks.formats.encoding` writes key and row.

        The origin is True if a follower of this table wrote the row.
        """

    def as_held(self, row: Row) -> Row:
        """Returns a row of the table as `rows` would, where the target cannot hold all of it, such as a null or an order."""
        return row

    def faults(self) -> Iterator[tuple[str, Fault]]:
        """Yields faults at the target other than wrong rows: names of files, each with its fault."""
        return iter(())

    def mend(self) -> None:  # noqa: B027 - as above
        """Drops what is damaged, so that `rows` lacks it. A repair calls it after `open`, and writes the missing rows."""

    def remarks(self) -> Sequence[str]:
        """Returns remarks on the target for users, which the status of its follower shows."""
        return ()

    def close(self) -> None:  # noqa: B027 - as above
        """Releases the target; uncommitted rows stay invisible."""


@dataclass(frozen=True, slots=True)
class Target(ABC):
    """A target of a table, declared with `publish=`.

    :param name: names the target in commands; unique among all tables.
    :param key: the columns that identify a row there. The target holds one row for each key.
    :param corrections: how versions that change final rows are treated: "send" writes the differences, "hold" holds
        them back until they are released, "ignore" leaves them out.
    """

    name: str
    key: tuple[str, ...]
    corrections: Corrections

    accepted_corrections: ClassVar[tuple[Corrections, ...]] = get_args(Corrections)
    # True if its rows can be compared with the table; an action leaves no row behind
    reads_back: ClassVar[bool] = True
    symbol: ClassVar[str] = ""  # shown in Dagster: one of the kinds that it draws

    def __post_init__(self) -> None:
        if not self.name:
            raise DeclarationError("target='': commands name it; give a name")
        if not self.key:
            raise DeclarationError(
                f"target={self.name}, key=[]: at least one column identifies a row; give one"
            )
        one_of("corrections", self.corrections, self.accepted_corrections)

    @property
    def real_time(self) -> str:
        """The place that has rows before they are committed; empty for a target without one."""
        return ""

    @property
    def place(self) -> str:
        """The place that it writes to, if its name does not say it. No target's place may begin with that of another."""
        return ""

    def check(self, table: str, columns: "pa.Schema") -> None:  # noqa: B027 - most targets hold all
        """Raises SinkError for columns of the table that the target cannot hold.

        `lakehouse validate` calls it, and the follower where columns change.
        """

    @abstractmethod
    def sink(self, settings: Settings, table: str) -> Sink:
        """Returns the sink that writes the table of that name to this target; nothing is opened yet."""
