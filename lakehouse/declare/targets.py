"""Where a table is published: what a user declares (`Target`), and what writes there (`Sink`).

A target of your own is a subclass of `Target` whose `sink` gives a subclass of `Sink`. The follower
(`lakehouse.sinks.follower`) calls a sink in this order, and nothing else:

    open, position, then for each version of the table: columns (where they are new), write, commit
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from lakehouse.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

Corrections = Literal["send", "hold", "ignore"]
Change = Literal["insert", "update", "delete"]
Fault = Literal["missing file", "damaged file", "foreign file"]
Row = Mapping[str, object]


def columns_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """The columns that a target is declared with: one name, or several."""
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row that a version of a table adds, changes or removes.

    :param kind: "insert", "update" (the key was there, with another row) or "delete".
    :param row: the row by its columns; of a deletion, the row as it was.
    """

    kind: Change
    row: Row


@dataclass(frozen=True, slots=True)
class Action:
    """What is to be done for one row, by a target such as `webhook` or `mail`.

    :param id: 32 hexadecimal digits, the same whenever the action is tried.
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
    """Which version of which table a target holds.

    :param table: the Delta id of the table; a table that is made again has another one.
    :param version: the last Delta version that was written.
    :param written: when that version was committed. A table that was restored may have another one of the same number.
    :param held: versions up to it whose corrections are held back, by `corrections="hold"`.
    """

    table: str
    version: int
    written: str = ""
    held: tuple[int, ...] = ()

    def to_json(self) -> str:
        """The position as a sink keeps it."""
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

    `SinkAway` says that the target does not answer: the follower opens it again until it does. Any other error
    ends the process; the next one opens the target again. Either goes on from the position.

    `going_on`: a sink whose `write` may take minutes calls it meanwhile, again and again, so that the process is
    seen to work. It raises `lakehouse.stopping.Stopped` if that is to end: what was not committed is written again.
    """

    going_on: Callable[[], None] = staticmethod(lambda: None)

    @abstractmethod
    def open(self) -> None:
        """Takes the target over: ends what an earlier process left open, and refuses that process from now on."""

    @abstractmethod
    def position(self) -> Position | None:
        """What the target holds, read after `open`; None if nothing was ever committed."""

    def columns(self, schema: "pa.Schema") -> None:  # noqa: B027 - most targets need none
        """Is given the columns of the rows that come next, before the first of them and where they change."""

    @abstractmethod
    def write(self, version: int, changes: Sequence[RowChange]) -> None:
        """Writes the changes of a version, in their order; no reader sees them before `commit`."""

    @abstractmethod
    def commit(self, position: Position) -> None:
        """Makes what was written and the position visible, both or neither."""

    @abstractmethod
    def rows(self, version: int) -> Iterator[tuple[str, str, bool]]:
        """What the target holds as of a version: of each key the row, both as `lakehouse.sinks.formats.encoding` writes them.

        The third says whether a follower of this table wrote it.
        """

    def as_held(self, row: Row) -> Row:
        """A row of the table as `rows` gives it back, if the target cannot hold all of it: a null as something else, an order."""
        return row

    def faults(self) -> Iterator[tuple[str, Fault]]:
        """What is wrong at the target beside its rows: names of files, each with why. Most targets have none."""
        return iter(())

    def mend(self) -> None:  # noqa: B027 - as above
        """Lets go of what is damaged, so that `rows` lacks it. A repair calls it after `open`, and writes what is lacking."""

    def remarks(self) -> Sequence[str]:
        """What a user is to know of the target, for the status of its follower."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Lets go of the target; what was not committed is not visible."""


@dataclass(frozen=True, slots=True)
class Target(ABC):
    """A target of a table, declared with `publish=`.

    :param name: names the target in commands; unique among all tables.
    :param key: the columns that identify a row there. The target holds one row for each key.
    :param corrections: what happens to versions that change rows which were final before: "send" writes what
        differs, "hold" holds it back until it is released, "ignore" leaves it out.
    """

    name: str
    key: tuple[str, ...]
    corrections: Corrections

    # whether its rows can be compared with the table: an action that was done leaves none
    reads_back: ClassVar[bool] = True

    @property
    def place(self) -> str:
        """Where it writes, if that is not its name: no target's place begins with that of another."""
        return ""

    def check(self, table: str, columns: "pa.Schema") -> None:  # noqa: B027 - most targets hold all
        """Raises SinkError for columns of the table that the target cannot hold.

        `lakehouse validate` asks this, and the follower where columns change.
        """

    @abstractmethod
    def sink(self, settings: Settings, table: str) -> Sink:
        """What writes the table of that name to this target; nothing is opened yet."""
