"""Process functions, and the life of one key: rows in the order of event time, timers between them, its state as text."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from heapq import heappop, heappush
from itertools import groupby
from typing import Any

from lakehouse.declare.columns import ARRIVAL, PLACE, SOURCE_ORDER
from lakehouse.errors import DeclarationError

_INSTANT = timedelta(microseconds=1)
LAST, NEXT, LIFE = "_last", "_next", "_life"  # of a kept state, beside the key
FIRST, SECOND = "_first", "_second"  # the row itself, in a union of two inputs
MAIN = "main"  # the column of rows without a tag, of a function with side outputs
Row = dict[str, Any]
State = dict[str, Any]


class Timers:
    """The instants of event time at which a key's function is called next."""

    def __init__(self, instants: Iterable[datetime] = ()) -> None:
        self._instants = sorted(instants)

    def set(self, at: datetime) -> None:
        """Calls `on_timer` at that instant, once however often it is set."""
        if at not in self._instants:
            heappush(self._instants, at)

    def clear(self) -> None:
        self._instants.clear()

    def due(self, until: datetime, before: datetime | None = None) -> datetime | None:
        """Removes and returns the earliest instant, if it is not later than `until`, and earlier than `before`; else None."""
        first = self._instants[0] if self._instants else None
        if first is None or first > until or (before and first >= before):
            return None
        return heappop(self._instants)

    def to_come(self) -> list[datetime]:
        """Returns the instants that are set, in order."""
        return sorted(self._instants)


@dataclass(frozen=True, slots=True)
class OutputTag:
    """Rows of a process function that go to a table of their own (`side_output`).

        REFUSED = OutputTag("refused", "user STRING, at TIMESTAMP, why STRING")

    :param name: of the column that holds them in the table of the process function.
    :param output: their columns, Spark DDL, the event time among them.
    """

    name: str
    output: str

    def row(self, **values: Any) -> Row:
        """Returns a row for `on_row` or `on_timer` to yield, which has their event time."""
        return {self.name: values}


class KeyedProcess:
    """A Python function over the rows of one key, with state and timers.

    `output` has the columns of its rows as Spark DDL, the event time among them. `side_outputs` are
    the tags of rows that go to tables of their own.

    `state` is a dict, empty at first, of any values, lists and dicts. A row without an event time gets
    that of the row or timer that it was made from. A state that lasts (`ttl=` on the table) consists
    of None, bool, int, float, str, bytes, Decimal, date, datetime (UTC), timedelta, and of lists,
    tuples and dicts of these. A field that a later version of the function adds is missing from states
    that were kept before: `state.get(name, default)`.
    """

    output: str
    side_outputs: tuple[OutputTag, ...] = ()

    def check(self, within: timedelta, at: str) -> None:
        """Raises DeclarationError if it cannot be used with these parameters of `process`.

        `within` is how long a key is remembered, by that parameter or by the table's `ttl`.
        """

    def on_row(self, state: State, row: Row, timers: Timers) -> Iterable[Row]:
        """Returns the output of a row (a dict by column; instants are aware, in UTC).

        Timers of the same instant come after it.
        """
        raise NotImplementedError

    def on_timer(self, state: State, at: datetime, timers: Timers) -> Iterable[Row]:
        """Returns the output of a timer."""
        return ()


class KeyedCoProcess(KeyedProcess):
    """A Python function over the rows of one key in two inputs, in event time across both.

    Rows of one instant come in the order of their source, whichever input has them.
    """

    def on_row1(self, state: State, row: Row, timers: Timers) -> Iterable[Row]:
        """Returns the output of a row of the first input, as `on_row`."""
        raise NotImplementedError

    def on_row2(self, state: State, row: Row, timers: Timers) -> Iterable[Row]:
        """Returns the output of a row of the second input, as `on_row`."""
        raise NotImplementedError

    def on_row(self, state: State, row: Row, timers: Timers) -> Iterable[Row]:
        """Returns the output of `on_row1` or `on_row2`, by the input of the row."""
        first = row[FIRST]
        if first is not None:
            return self.on_row1(state, first, timers)
        return self.on_row2(state, row[SECOND], timers)


@dataclass
class Life:
    """The state of a key between two of its rows."""

    state: State = field(default_factory=dict)
    timers: Timers = field(default_factory=Timers)
    last: datetime | None = None  # the event time of its last row
    arrival: Row = field(default_factory=dict)  # of that row

    def kept(self) -> Row:
        """Returns the columns of a kept state other than the key."""
        timers = self.timers.to_come()
        text = to_text([self.state, timers, self.arrival])
        return {LAST: self.last, NEXT: timers[0] if timers else None, LIFE: text}

    @classmethod
    def of(cls, kept: Row) -> "Life":
        state, timers, arrival = from_text(kept[LIFE])
        return cls(state, Timers(timers), kept[LAST], arrival)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which the lives of a table's keys go on."""

    function: KeyedProcess
    at: str  # the column of event time
    within: timedelta  # how long state and timers outlive a key's last row
    lasting: bool = False  # True if a life may begin with a kept state


def outputs(
    function: KeyedProcess, rows: Iterable[Row], within: timedelta, at: str
) -> Iterator[Row]:
    """Returns the output of a function over the rows of one key, from its first to its last."""
    return lived(Rules(function, at, within), Life(), in_order(rows, at))


def lived(
    rules: Rules, life: Life, rows: Iterable[Row], before: datetime | None = None
) -> Iterator[Row]:
    """Yields the output of the next rows of a key, and of its timers, of those `before` an instant if it is given.

    The row of a timer has the arrival of the row before it, so it is never late.
    """
    at = rules.at
    for row in rows:
        yield from _fired(rules, life, row[at])
        if life.last and row[at] - life.last > rules.within:
            life.state, life.timers = {}, Timers()
        life.last, life.arrival = row[at], row[ARRIVAL]
        for output in rules.function.on_row(life.state, row, life.timers):
            yield _placed(rules, life, output, row[at])
        _check_timers(rules, life, row[at])
    yield from _fired(rules, life, before)


def _fired(rules: Rules, life: Life, before: datetime | None) -> Iterator[Row]:
    if life.last is None:
        return
    until = life.last + rules.within
    while instant := life.timers.due(until, before):
        for output in rules.function.on_timer(life.state, instant, life.timers):
            yield _placed(rules, life, output, instant)
        _check_timers(rules, life, instant + _INSTANT)


def _check_timers(rules: Rules, life: Life, first: datetime) -> None:
    """Raises DeclarationError for a timer before that instant: its output would lie in a range that is final."""
    due = life.timers.due(first - _INSTANT) if rules.lasting else None
    if due is not None:
        raise DeclarationError(
            f"timer={due}, earliest={first}: with a lasting state a timer is not before its row, and later than the timer that "
            "sets it; set a later one"
        )


def _placed(rules: Rules, life: Life, made: Row, instant: datetime) -> Row:
    tags = rules.function.side_outputs
    row = {rules.at: instant, **made}
    if tags:
        tag = next((tag.name for tag in tags if tag.name in made), MAIN)
        row = {rules.at: instant, **made.get(tag, made)}
    if (rules.lasting or tags) and row[rules.at] != instant:
        raise DeclarationError(
            f"{rules.at}={row[rules.at]}: with a lasting state, or side outputs, what is given has the event time of its row or "
            f"timer ({instant}), for what lies before that is final; give the other instant in a column of its own"
        )
    return (row if not tags else {rules.at: instant, tag: row}) | {ARRIVAL: life.arrival}


def in_order(rows: Iterable[Row], at: str) -> list[Row]:
    """Returns rows by event time, then by source; rows without a source (results of windows) come first, by content."""

    def order(row: Row) -> tuple:
        places = [row[ARRIVAL].get(name) for name in (*SOURCE_ORDER, PLACE)]
        return row[at], *((place is not None, place) for place in places)

    ordered: list[Row] = []
    for _, same in groupby(sorted(rows, key=order), order):
        first, *others = same
        ordered += sorted([first, *others], key=repr) if others else [first]
    return ordered


# A state is kept as text from which it comes back exactly, so that a key goes on as if its state had never left memory.
# Values that JSON lacks are objects with their kind under "$". A list or dict that is in a state twice becomes one
# again: the second time it is written as a reference to the first, by number.
_KIND, _VALUE = "$", "v"
_AS_THEY_ARE = (type(None), bool, int, float, str)
_TEXTS: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: (lambda value: b64encode(value).decode(), b64decode),
    date: (date.isoformat, date.fromisoformat),
    Decimal: (str, Decimal),
    timedelta: (lambda value: value // _INSTANT, lambda number: number * _INSTANT),
}
_BY_NAME = {kind.__name__: read for kind, (_, read) in _TEXTS.items()}


def to_text(value: Any) -> str:
    """Returns a state as text. Raises DeclarationError for a value that would not come back as it was."""
    return json.dumps(_Writer().plain(value), separators=(",", ":"))


def from_text(text: str) -> Any:
    """Returns the state that `to_text` was given."""
    return _Reader().value(json.loads(text))


class _Writer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # of lists and dicts, by identity, in the order of visit

    def plain(self, value: Any) -> Any:
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if kind in (list, dict):
            if id(value) in self._numbers:
                return _tagged("same", self._numbers[id(value)])
            self._numbers[id(value)] = len(self._numbers)
            return [self.plain(item) for item in value] if kind is list else self._dict(value)
        if kind is tuple:
            return _tagged("tuple", [self.plain(item) for item in value])
        if kind is datetime:
            return _tagged("datetime", _instant(value))
        if kind in _TEXTS:
            return _tagged(kind.__name__, _TEXTS[kind][0](value))
        raise DeclarationError(
            f"state, value={value!r}: a lasting state holds None, bool, int, float, str, bytes, Decimal, date, datetime, "
            f"timedelta, and lists, tuples and dicts of these, not {kind.__name__}; keep it as one of them"
        )

    def _dict(self, value: dict[Any, Any]) -> Any:
        if all(type(key) is str for key in value) and _KIND not in value:
            return {key: self.plain(item) for key, item in value.items()}
        return _tagged("dict", [[self.plain(key), self.plain(item)] for key, item in value.items()])


class _Reader:
    def __init__(self) -> None:
        self._seen: list[Any] = []

    def value(self, plain: Any) -> Any:
        if type(plain) is list:
            return self._list(plain)
        if type(plain) is not dict:
            return plain
        if _KIND not in plain:
            return self._dict(plain.items())
        kind, value = plain[_KIND], plain[_VALUE]
        if kind == "same":
            return self._seen[value]
        if kind == "tuple":
            return tuple(self.value(item) for item in value)
        if kind == "dict":
            return self._dict(value)
        return datetime.fromisoformat(value) if kind == "datetime" else _BY_NAME[kind](value)

    def _list(self, plain: Iterable[Any]) -> list[Any]:
        values: list[Any] = []
        self._seen.append(values)
        values.extend(self.value(item) for item in plain)
        return values

    def _dict(self, plain: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        entries: dict[Any, Any] = {}
        self._seen.append(entries)
        for key, item in plain:
            name = self.value(key)
            entries[name] = self.value(item)
        return entries


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {_KIND: kind, _VALUE: value}


def _instant(value: datetime) -> str:
    if value.utcoffset() != timedelta(0):
        raise DeclarationError(
            f"state, value={value!r}: an instant that is kept is aware and in UTC, as those of the rows; use astimezone(UTC)"
        )
    return value.astimezone(UTC).isoformat()
