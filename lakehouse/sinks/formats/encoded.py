"""The changes of a version, with keys and rows as text: of rows in Arrow, column by column."""

from collections.abc import Iterator, Sequence
from typing import overload

import pyarrow as pa

from lakehouse.declare.targets import Change, RowChange
from lakehouse.sinks.formats import texts
from lakehouse.sinks.formats.encoding import key_of, rows_of, text_of, value_of


class Columns(Sequence[RowChange]):
    """Changes whose rows are in Arrow. A row of Python is made only where one is asked for."""

    def __init__(self, kinds: Sequence[Change], rows: pa.Table) -> None:
        self.kinds, self.rows = kinds, rows

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

    def __iter__(self) -> Iterator[RowChange]:
        for part in self.parts():
            yield from map(RowChange, part.kinds, rows_of(part.rows))

    def parts(self) -> "Iterator[Columns]":
        """Yields the changes in order, as many at once as texts are made of."""
        first = 0
        for rows in texts.parts(self.rows):
            yield Columns(self.kinds[first : first + rows.num_rows], rows)
            first += rows.num_rows

    def take(self, places: Sequence[int]) -> "Columns":
        """Returns the changes at these places."""
        rows = self.rows.take(pa.array(places, pa.int64()))
        return Columns([self.kinds[place] for place in places], rows)

    def keys(self, key: Sequence[str]) -> list[str]:
        """Returns the key of each row. Raises SinkError for a row that has none."""
        return [text for part in texts.parts(self.rows) for text in texts.keys_of(part, key)]

    def values(self) -> list[str]:
        """Returns each row as JSON."""
        return [text for part in texts.parts(self.rows) for text in texts.values_of(part)]

    def cells(self, names: Sequence[str]) -> pa.Table:
        """Returns these columns, each value as text, null where it is null."""
        return pa.table({name: texts.cells(self.rows, name, text_of) for name in names})


class Rows(Sequence[RowChange]):
    """Changes whose rows are of Python already, as those of a repair; otherwise as `Columns`."""

    def __init__(self, changes: Sequence[RowChange]) -> None:
        self._changes = changes

    @property
    def kinds(self) -> Sequence[Change]:
        return [change.kind for change in self._changes]

    def __getitem__(self, place):
        return self._changes[place]

    def __len__(self) -> int:
        return len(self._changes)

    def parts(self) -> "Iterator[Rows]":
        return (Rows([change]) for change in self._changes)

    def take(self, places: Sequence[int]) -> "Rows":
        return Rows([self._changes[place] for place in places])

    def keys(self, key: Sequence[str]) -> list[str]:
        return [key_of(change.row, key) for change in self._changes]

    def values(self) -> list[str]:
        return [value_of(change.row) for change in self._changes]

    def cells(self, names: Sequence[str]) -> pa.Table:
        rows = [change.row for change in self._changes]
        texts = {n: [None if r[n] is None else text_of(r[n]) for r in rows] for n in names}
        return pa.table({n: pa.array(column, pa.string()) for n, column in texts.items()})


Changes = Columns | Rows


def of(changes: Sequence[RowChange]) -> Changes:
    """Returns the changes that a sink is given as it writes them."""
    return changes if isinstance(changes, Changes) else Rows(changes)
