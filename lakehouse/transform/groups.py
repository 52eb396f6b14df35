"""By which columns rows of a function's result belong together with rows of its inputs, found in its plan.

A column of the result is such a one if each of its rows is made of rows alone that have the same
value in a column of theirs: what it was grouped, joined, ranked and united by. So when rows of the
inputs change, the rows of the result that have these values are computed again, and no others.

From the leaves upwards each column is known by the columns of the inputs that it is equal to, one
of each use of an input (`_Origins`), or by the day, hour or the like of one. An operator that is not
known here leaves none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.storage.row_index import Truncated, Value
from lakehouse.transform.plan_tree import analyzed, expressions_of, kind_of, seq, unaliased
from lakehouse.transform.shapes import INPUT, SUBQUERIES

_PASSING = {
    "CollectMetrics",
    "Distinct",
    "EventTimeWatermark",
    "Generate",
    "RepartitionByExpression",
    "Repartition",
    "ResolvedHint",
    "Sort",
    "Subquery",
    "SubqueryAlias",
    "UnresolvedHint",
    "View",
}
_TRUNCATED = {"year", "quarter", "month", "week", "day", "hour", "minute", "second"}
_Origins = dict[int, Value]  # use of an input, by number -> its column


@dataclass(frozen=True, slots=True)
class Uses:
    """The columns of a result by which its rows belong to rows of its inputs, and of each use of an input the same columns there.

    Empty columns if there are none: any row of an input may then change any row of the result.
    """

    columns: tuple[str, ...]
    of: Mapping[str, Sequence[tuple[Value, ...]]]  # input -> a tuple for each use of it


@dataclass
class _Node:
    """What is known of an operator's rows."""

    columns: list[tuple[int, _Origins]]  # each column's id, and what it is equal to
    uses: dict[int, str] = field(default_factory=dict)  # number -> input
    pairs: dict[frozenset[int], _Origins] = field(
        default_factory=dict
    )  # what `coalesce` of two columns is equal to

    def origins(self, column: int) -> _Origins:
        return next((origins for each, origins in self.columns if each == column), {})


def uses(rows: DataFrame, keys: Sequence[str]) -> Uses:
    """The `Uses` of a function's result over marked inputs, of the `keys` alone if these will do.

    By what is truncated only where no column will do as it is, and then by all of the keys.
    """
    node, names = _Walk().node(analyzed(rows)), rows.columns
    shared: dict[str, _Origins] = {}
    origins_of = dict(zip(names, (origins for _, origins in node.columns), strict=True))
    for name in sorted(origins_of, key=lambda name: name not in keys):
        of_all = node.uses and origins_of[name].keys() == node.uses.keys()
        # of columns that are always equal one does
        if of_all and origins_of[name] not in shared.values():
            shared[name] = origins_of[name]
    as_they_are = {
        name: origins
        for name, origins in shared.items()
        if all(isinstance(value, str) for value in origins.values())
    }
    if as_they_are or set(keys) - shared.keys():
        shared = as_they_are
    chosen = tuple(key for key in keys if key in shared) or tuple(shared)
    if not chosen:
        return Uses((), {})
    of: dict[str, list[tuple[Value, ...]]] = {}
    for number, name in node.uses.items():
        columns = tuple(shared[each][number] for each in chosen)
        if columns not in of.setdefault(name, []):
            of[name].append(columns)
    return Uses(chosen, of)


def values(use: Sequence[Value], names: Sequence[str]) -> list[Column]:
    """The values of a use of an input, by the names of the columns of the result."""
    return [_column(v).alias(n) for v, n in zip(use, names, strict=True)]


def _column(value: Value) -> Column:
    if isinstance(value, str):
        return F.col(value)
    unit, instant = value.unit, F.col(value.column)
    return F.to_date(instant) if unit == "date" else F.date_trunc(unit, instant)


def belonging(
    rows: DataFrame,
    few: DataFrame,
    uses: Sequence[Sequence[Value]],
    columns: Sequence[str],
) -> DataFrame:
    """The rows that belong to one of the `few` groups, by any of the `uses` of their columns."""
    places = {name: f"_group_{n}" for n, name in enumerate(few.columns)}
    groups, parts = F.broadcast(few.withColumnsRenamed(places)), []
    # one after the other: a condition with OR would hold each row against each group
    for use in uses:
        pairs = zip(use, columns, strict=True)
        same = reduce(and_, (_column(v).eqNullSafe(F.col(places[group])) for v, group in pairs))
        parts.append(rows.join(groups, same, "left_semi"))
        rows = rows.join(groups, same, "left_anti")
    return reduce(DataFrame.union, parts)


class _Walk:
    def __init__(self) -> None:
        self._numbers = count()

    def node(self, plan) -> _Node:
        kind = plan.nodeName()
        if _holds_subquery(plan):
            return _unknown(plan, [self.node(child) for child in seq(plan.children())], hidden=True)
        below = [self.node(child) for child in seq(plan.children())]
        if not below:
            return self._leaf(plan)
        own = getattr(self, f"_{kind.lower()}", None)
        if own is not None:
            return own(plan, *below)
        if kind in _PASSING:
            return _Node(
                [(each, below[0].origins(each)) for each in _ids(plan)],
                below[0].uses,
                below[0].pairs,
            )
        return _unknown(plan, below)

    def _leaf(self, plan) -> _Node:
        output = seq(plan.output())
        named = [a.metadata().getString(INPUT) for a in output if a.metadata().contains(INPUT)]
        if not named:
            return _Node([(a.exprId().id(), {}) for a in output])
        number = next(self._numbers)
        return _Node([(a.exprId().id(), {number: a.name()}) for a in output], {number: named[0]})

    def _project(self, plan, below: _Node) -> _Node:
        columns = [(e.exprId().id(), _of(e, below)) for e in seq(plan.projectList())]
        return _Node(columns, below.uses, below.pairs)

    def _filter(self, plan, below: _Node) -> _Node:
        """Joins in SQL may be written as a list of tables, and a filter."""
        columns = dict(below.columns)
        for one, other in _equal(plan.condition()):
            columns[one] = columns[other] = columns.get(one, {}) | columns.get(other, {})
        return _Node(list(columns.items()), below.uses, below.pairs)

    def _aggregate(self, plan, below: _Node) -> _Node:
        grouped = [unaliased(e) for e in seq(plan.groupingExpressions())]
        columns = []
        for each in seq(plan.aggregateExpressions()):
            kept = any(unaliased(each).semanticEquals(by) for by in grouped)
            columns.append((each.exprId().id(), _of(each, below) if kept else {}))
        return _Node(columns, below.uses)

    def _window(self, plan, below: _Node) -> _Node:
        by = [
            below.origins(e.exprId().id())
            for e in seq(plan.partitionSpec())
            if kind_of(e) == "AttributeReference"
        ]
        return _Node(
            [
                (each, origins if (origins := below.origins(each)) in by else {})
                for each in _ids(plan)
            ],
            below.uses,
            below.pairs,
        )

    def _deduplicate(self, plan, below: _Node) -> _Node:
        keys = {a.exprId().id() for a in seq(plan.keys())}
        return _Node(
            [(each, below.origins(each) if each in keys else {}) for each in _ids(plan)], below.uses
        )

    def _union(self, plan, *below: _Node) -> _Node:
        uses = {number: name for each in below for number, name in each.uses.items()}
        columns = []
        for place, column in enumerate(_ids(plan)):
            parts = [each.columns[place][1] for each in below]
            columns.append((column, {n: name for part in parts for n, name in part.items()}))
        return _Node(columns, uses)

    def _join(self, plan, left: _Node, right: _Node) -> _Node:
        how, uses = plan.joinType().sql(), left.uses | right.uses
        equal = list(_equalities(plan, left, right))
        both: dict[int, _Origins] = {}
        for one, other in equal:
            together = left.origins(one) | right.origins(other)
            both[one] = both.get(one, {}) | together
            both[other] = both.get(other, {}) | together
        from_left = how in ("INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI")
        from_right = how in ("INNER", "CROSS", "RIGHT OUTER")
        sides = {each for each, _ in left.columns} if from_left else set()
        sides |= {each for each, _ in right.columns} if from_right else set()
        origins_of = dict([*left.columns, *right.columns])
        columns = [
            (each, both.get(each, origins_of.get(each, {})) if each in sides else {})
            for each in _ids(plan)
        ]
        pairs = left.pairs | right.pairs if how in ("INNER", "CROSS") else {}
        if how == "FULL OUTER":
            pairs = {frozenset(pair): both[pair[0]] | both[pair[1]] for pair in equal}
        return _Node(columns, uses, pairs)


def _unknown(plan, below: Sequence[_Node], *, hidden: bool = False) -> _Node:
    """An operator of which nothing is known.

    `hidden`: it may read inputs that are not seen here.
    """
    uses = {number: name for each in below for number, name in each.uses.items()}
    return _Node([(each, {}) for each in _ids(plan)], uses | ({-1: ""} if hidden else {}))


def _equalities(plan, left: _Node, right: _Node) -> Iterator[tuple[int, int]]:
    """The pairs of columns, one of each side, that a join holds equal."""
    mine, theirs = ({each for each, _ in side.columns} for side in (left, right))
    for one, other in _equal(plan.condition().get()) if plan.condition().isDefined() else ():
        if one in mine and other in theirs:
            yield one, other
        elif other in mine and one in theirs:
            yield other, one


def _equal(condition) -> Iterator[tuple[int, int]]:
    """The pairs of columns that are equal wherever the condition is true."""
    todo = [condition]
    while todo:
        each = todo.pop()
        parts = seq(each.children())
        if kind_of(each) == "And":
            todo += parts
        elif kind_of(each) in ("EqualTo", "EqualNullSafe") and all(
            kind_of(part) == "AttributeReference" for part in parts
        ):
            one, other = (part.exprId().id() for part in parts)
            yield one, other


def _of(expression, below: _Node) -> _Origins:
    """What an expression is equal to: a column, or the first of two columns that is not null."""
    inner = unaliased(expression)
    if kind_of(inner) == "AttributeReference":
        return below.origins(inner.exprId().id())
    if kind_of(inner) == "Coalesce":
        parts = seq(inner.children())
        if all(kind_of(part) == "AttributeReference" for part in parts):
            return below.pairs.get(frozenset(part.exprId().id() for part in parts), {})
    if truncated := _truncated(inner):
        column, unit = truncated
        origins = below.origins(column.exprId().id())
        whole = all(isinstance(each, str) for each in origins.values())
        return {n: Truncated(str(each), unit) for n, each in origins.items()} if whole else {}
    return {}


def _truncated(expression) -> tuple[Any, str] | None:
    """The column of instants that an expression truncates, in UTC, and to what; None of another expression."""
    if kind_of(expression) == "ParseToDate":
        expression = expression.replacement()
    kind = kind_of(expression)
    if kind not in ("Cast", "TruncTimestamp"):
        return None
    column = expression.children().apply(int(kind == "TruncTimestamp"))
    instants = (
        kind_of(column) == "AttributeReference" and column.dataType().typeName() == "timestamp"
    )
    if not instants or expression.timeZoneId().getOrElse(None) != "UTC":
        return None
    if kind == "Cast":
        return (column, "date") if expression.dataType().typeName() == "date" else None
    unit = expression.format()
    name = str(unit.value()).lower() if kind_of(unit) == "Literal" else ""
    return (column, name) if name in _TRUNCATED else None


def _holds_subquery(plan) -> bool:
    return any(kind in SUBQUERIES for _, kind, _ in expressions_of(plan))


def _ids(plan) -> list[int]:
    return [a.exprId().id() for a in seq(plan.output())]
