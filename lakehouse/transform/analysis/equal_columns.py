"""Consequences of equal columns: for other columns, for spans of time and their ends, and for truncated instants."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.storage.keyed.row_index import Value
from lakehouse.transform.analysis.plan_tree import id_of, is_column, kind_of, references, seq

_TRUNCATED = {"year", "quarter", "month", "week", "day", "hour", "minute", "second"}
SPAN = "struct<start:timestamp,end:timestamp>"
ENDS = ("start", "end")


@dataclass(frozen=True, slots=True)
class End:
    """The start or the end of a column that is a span of time, such as a window."""

    column: str
    name: str


Origins = dict[int, Value | End]  # use of an input, by number -> its column
Equal = tuple[Origins, Origins]


def extended(columns, equal: Sequence[Equal], *, one_end: bool) -> list[tuple[int, Origins]]:
    """Returns the columns, each with the origins of all columns that it is equal to."""
    equal = [pair for pair in equal if all(pair)]
    equal += spans(equal, one_end=one_end)
    equal += [(end_of(a, end), end_of(b, end)) for a, b in equal for end in ENDS]
    equal = [pair for pair in equal if all(pair)]
    extended = [(column, dict(origins)) for column, origins in columns]
    changed = bool(equal)
    while changed:
        changed = False
        for _, origins in extended:
            for pair in equal:
                more = pair[0] | pair[1]
                is_one = any(side.items() <= origins.items() for side in pair)
                if is_one and more.keys() - origins.keys():
                    origins |= more | origins
                    changed = True
    return extended


def spans(equal: Sequence[Equal], *, one_end: bool) -> list[Equal]:
    """Returns the spans of time that are equal because their ends are."""
    ends: dict[str, list[Equal]] = {name: [] for name in ENDS}
    for one, other in equal:
        for name in ENDS:
            if all(isinstance(v, End) and v.name == name for v in (*one.values(), *other.values())):
                ends[name].append((span_of(one), span_of(other)))
    starts, stops = ends.values()
    turned = [(b, a) for a, b in stops]
    if one_end:
        return starts + stops
    return [pair for pair in starts if pair in stops or pair in turned]


def equalities(condition) -> Iterator[tuple[Any, Any]]:
    """Yields the pairs of expressions that are equal wherever the condition is true."""
    todo = [condition]
    while todo:
        part = todo.pop()
        if kind_of(part) == "And":
            todo += seq(part.children())
        elif kind_of(part) in ("EqualTo", "EqualNullSafe"):
            yield part.left(), part.right()


def across(one, other, of_side: Sequence[set[int]]) -> bool:
    """Returns True if one expression has columns of one side of a join alone, and the other those of the other side."""
    mine, theirs = (set(map(id_of, references(side))) for side in (one, other))
    left, right = of_side
    if not mine or not theirs:
        return False
    return (mine <= left and theirs <= right) or (mine <= right and theirs <= left)


def end_of(origins: Origins, name: str) -> Origins:
    """Returns the start or end of a span that has these origins."""
    whole = all(isinstance(value, str) for value in origins.values())
    return {n: End(str(value), name) for n, value in origins.items()} if whole else {}


def span_of(origins: Origins) -> Origins:
    """Returns the span with an end that has these origins."""
    ends = all(isinstance(end, End) for end in origins.values())
    return {n: end.column for n, end in origins.items() if isinstance(end, End)} if ends else {}


def truncated(expression) -> tuple[Any, str] | None:
    """Returns the column of instants that an expression truncates in UTC, and the unit; None for another expression."""
    if kind_of(expression) == "ParseToDate":
        expression = expression.replacement()
    kind = kind_of(expression)
    if kind not in ("Cast", "TruncTimestamp"):
        return None
    column = expression.children().apply(int(kind == "TruncTimestamp"))
    is_instant = is_column(column) and column.dataType().typeName() == "timestamp"
    if not is_instant or expression.timeZoneId().getOrElse(None) != "UTC":
        return None
    if kind == "Cast":
        return (column, "date") if expression.dataType().typeName() == "date" else None
    unit = expression.format()
    name = str(unit.value()).lower() if kind_of(unit) == "Literal" else ""
    return (column, name) if name in _TRUNCATED else None
