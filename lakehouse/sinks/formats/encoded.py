"""The changes of a version, with keys and rows as text: of rows in Arrow, column by column."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import overload

import pyarrow as pa

from lakehouse.declare.targets import Change, RowChange
from lakehouse.sinks.formats import texts
from lakehouse.sinks.formats.encoding import key_of, rows_of, text_of, value_of


class Changes(Sequence[RowChange], ABC):
    """Changes of a version in their order. Texts are those of `encoding`."""

    @property
    @abstractmethod
    def kinds(self) -> Sequence[Change]: ...

    @abstractmethod
    def parts(self) -> "Iterator[Changes]":
        """The same changes, as many at once as texts are made of."""

    @abstractmethod
    def take(self, places: Sequence[int]) -> "Changes":
        """The changes at these places."""

    @abstractmethod
    def keys(self, key: Sequence[str]) -> list[str]:
        """The key of each row. Raises SinkError for a row that has none."""

    @abstractmethod
    def values(self) -> list[str]:
        """Each row as JSON."""

    @abstractmethod
    def cells(self, names: Sequence[str]) -> pa.Table:
        """These columns, each value as text, null where it is null."""

    @overload
    def __getitem__(self, place: int) -> RowChange: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[RowChange]: ...
    def __getitem__(self, place: int | slice) -> RowChange | Sequence[RowChange]:
        if isinstance(place, slice):
            return self.take(range(len(self))[place])
        [change] = self.take([range(len(self))[place]])
        return change

    def __len__(self) -> int:
        return len(self.kinds)


class Columns(Changes):
    """Changes whose rows are in Arrow. A row of Python is made only where one is asked for."""

    def __init__(self, kinds: Sequence[Change], rows: pa.Table) -> None:
        self._kinds, self.rows = kinds, rows

    @property
    def kinds(self) -> Sequence[Change]:
        return self._kinds

    def __iter__(self) -> Iterator[RowChange]:
        for part in self.parts():
            yield from map(RowChange, part.kinds, rows_of(part.rows))

    def parts(self) -> "Iterator[Columns]":
        first = 0
        for rows in texts.parts(self.rows):
            yield Columns(self._kinds[first : first + rows.num_rows], rows)
            first += rows.num_rows

    def take(self, places: Sequence[int]) -> "Columns":
        return Columns(
            [self._kinds[place] for place in places], self.rows.take(pa.array(places, pa.int64()))
        )

    def keys(self, key: Sequence[str]) -> list[str]:
        return [text for part in texts.parts(self.rows) for text in texts.keys_of(part, key)]

    def values(self) -> list[str]:
        return [text for part in texts.parts(self.rows) for text in texts.values_of(part)]

    def cells(self, names: Sequence[str]) -> pa.Table:
        return pa.table({name: texts.cells(self.rows, name, text_of) for name in names})


class Rows(Changes):
    """Changes whose rows are of Python already, as those of a repair."""

    def __init__(self, changes: Sequence[RowChange]) -> None:
        self._changes = changes

    @property
    def kinds(self) -> Sequence[Change]:
        return [change.kind for change in self._changes]

    def __len__(self) -> int:
        return len(self._changes)

    def __iter__(self) -> Iterator[RowChange]:
        return iter(self._changes)

    def parts(self) -> "Iterator[Rows]":
        return (Rows([change]) for change in self._changes)

    def take(self, places: Sequence[int]) -> "Rows":
        return Rows([self._changes[place] for place in places])

    def keys(self, key: Sequence[str]) -> list[str]:
        return [key_of(change.row, key) for change in self._changes]

    def values(self) -> list[str]:
        return [value_of(change.row) for change in self._changes]

    def cells(self, names: Sequence[str]) -> pa.Table:
        found = {name: [change.row[name] for change in self._changes] for name in names}
        return pa.table(
            {
                name: pa.array([v if v is None else text_of(v) for v in column], pa.string())
                for name, column in found.items()
            }
        )


def of(changes: Sequence[RowChange]) -> Changes:
    """The changes that a sink is given, as it writes them."""
    return changes if isinstance(changes, Changes) else Rows(changes)
