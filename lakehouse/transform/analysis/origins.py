"""The input columns that each column of a plan is equal to, found from the leaves upwards by Catalyst's ids.

A column of an operator has the origin `bidder` in a use of an input if each row is made only of rows of that use with
its value in their column `bidder`. Grouping, joining, ranking and uniting by a column keep its origins. An operator
that is unknown here keeps none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from lakehouse.storage.keyed.row_index import Truncated
from lakehouse.transform.analysis.equal_columns import (
    ENDS,
    SPAN,
    Equal,
    Origins,
    across,
    end_of,
    equalities,
    extended,
    span_of,
    spans,
    truncated,
)
from lakehouse.transform.analysis.plan_tree import (
    expressions_of,
    id_of,
    ids,
    is_column,
    kind_of,
    seq,
    unaliased,
)
from lakehouse.transform.analysis.shapes import INPUT

_PASSING = {
    "CollectMetrics",
    "Distinct",
    "EventTimeWatermark",
    "Generate",
    "LocalLimit",  # which is below a GlobalLimit
    "RepartitionByExpression",
    "Repartition",
    "ResolvedHint",
    "Sort",
    "Subquery",
    "SubqueryAlias",
    "UnresolvedHint",
    "View",
}
_OPAQUE = {"MapInPandas", "MapInArrow", "FlatMapGroupsInPandas", "FlatMapGroupsInArrow"}
_INNER = ("INNER", "CROSS")


@dataclass
class Rows:
    """The facts about the rows of an operator."""

    plan: Any
    columns: list[tuple[int, Origins]]  # each column's id, and what it is equal to
    below: Sequence["Rows"] = ()
    uses: dict[int, str] = field(default_factory=dict)  # number -> input
    pairs: dict[frozenset[int], Origins] = field(default_factory=dict)
    """The origins of `coalesce` of two columns."""
    tied: dict[int, list[Equal]] = field(default_factory=dict)
    """The uses of a subquery whose rows are equal to the row outside, with the equal columns."""
    from_input: bool = False
    """True if each row is made of at least one row of an input."""
    has_subquery: bool = False
    asks: bool = False
    """True if a subquery of this operator reads rows of an input."""

    def origins(self, column: int) -> Origins:
        return next((origins for own, origins in self.columns if own == column), {})


class Walk:
    """One way through a plan.

    With `one_end`, spans that start or end together are equal. `named` is a column that Python functions of rows and
    groups are trusted to pass on under that name.
    """

    def __init__(self, *, one_end: bool = False, named: str = "") -> None:
        self._numbers = count()
        self.one_end = one_end
        self.named = named
        self._outside: dict[int, Origins] = {}  # the columns of the row outside of a subquery
        self.outside_uses: frozenset[int] = frozenset()

    def rows(self, plan) -> Rows:
        below = [self.rows(child) for child in seq(plan.children())]
        if plan.nodeName() == "LateralJoin":
            below.append(self._subquery(plan.right().plan(), below))
            below[0] = self._with_ties(below[0], below[1])
        subqueries = list(self._subqueries(plan, below))
        for subquery in subqueries:
            below = [self._with_ties(side, subquery) for side in below]
        rows = self._own(plan, below)
        hidden = _uses(subqueries)
        sides = [side.has_subquery for side in rows.below]
        rows.has_subquery = bool(subqueries) or plan.nodeName() == "LateralJoin" or any(sides)
        rows.asks = bool(hidden)
        rows.uses = rows.uses | hidden
        rows.tied = _together(rows.tied, *(side.tied for side in below))
        return self.with_own_ties(rows)

    def _own(self, plan, below: Sequence[Rows]) -> Rows:
        kind = plan.nodeName()
        if not below:
            return self._leaf(plan)
        if kind in _OPERATORS:
            return _OPERATORS[kind](self, plan, *below)
        is_of_python = kind == "Generate" and "Python" in kind_of(plan.generator())
        if kind in _PASSING and not is_of_python:  # such a generator may remember earlier rows
            return _passed(plan, below[0])
        if kind in _OPAQUE and self.named:
            return _opaque(self, plan, *below)
        driven = all(side.from_input for side in below)
        return Rows(plan, [(i, {}) for i in ids(plan)], below, _uses(below), from_input=driven)

    def _leaf(self, plan) -> Rows:
        output = seq(plan.output())
        named = [a.metadata().getString(INPUT) for a in output if a.metadata().contains(INPUT)]
        if not named:
            return Rows(plan, [(id_of(a), {}) for a in output])
        number = next(self._numbers)
        columns: list[tuple[int, Origins]] = [(id_of(a), {number: a.name()}) for a in output]
        return Rows(plan, columns, uses={number: named[0]}, from_input=True)

    def within(self, by: Iterable[Any], below: Rows) -> Rows:
        """Returns the rows of a group by some expressions, with origins only for the columns that these decide."""
        decided = [origins for e in by if (origins := self.of(e, below))]
        twice = [(origins, origins) for origins in decided]
        decided += [whole for whole, _ in spans(twice, one_end=self.one_end)]
        columns = [
            (column, origins if any(key.items() <= origins.items() for key in decided) else {})
            for column, origins in below.columns
        ]
        return replace(below, columns=columns, pairs={})

    # ---- subqueries

    def _subqueries(self, plan, below: Sequence[Rows]) -> Iterator[Rows]:
        plans = seq(plan.subqueries())
        if not plans or plan.nodeName() == "LateralJoin":
            return
        for expression, kind, _ in expressions_of(plan):
            if kind in ("Exists", "ScalarSubquery"):
                plans.remove(expression.plan())
                yield self._subquery(expression.plan(), below)
            elif kind == "InSubquery":
                asked = expression.query().plan()
                plans.remove(asked)
                pairs = list(zip(seq(expression.values()), seq(asked.output()), strict=True))
                yield self._subquery(asked, below, pairs)
        for other in plans:
            yield replace(self._subquery(other, below), tied={})

    def _subquery(self, plan, below: Sequence[Rows], pairs: Sequence[tuple[Any, Any]] = ()) -> Rows:
        outside, outside_uses = self._outside, self.outside_uses
        outer_row = Rows(plan, [column for side in below for column in side.columns])
        self._outside = dict(outer_row.columns)
        self.outside_uses |= {number for _, origins in outer_row.columns for number in origins}
        try:
            rows = self.rows(plan)
            # NOT IN reads all rows to see whether a value is null
            equal = [
                (self.of(value, outer_row), rows.origins(id_of(column)))
                for value, column in pairs
                if not value.nullable() and not column.nullable()
            ]
            columns = extended(rows.columns, equal, one_end=self.one_end)
            return self.with_own_ties(replace(rows, columns=columns))
        finally:
            self._outside, self.outside_uses = outside, outside_uses

    def with_own_ties(self, rows: Rows) -> Rows:
        tied: dict[int, list[Equal]] = {}
        for _, origins in rows.columns if self.outside_uses else ():
            outside = {n: value for n, value in origins.items() if n in self.outside_uses}
            for number in (rows.uses.keys() & origins.keys()) if outside else ():
                tied.setdefault(number, []).append((outside, {number: origins[number]}))
        return replace(rows, tied=_together(rows.tied, tied))

    def _with_ties(self, side: Rows, subquery: Rows) -> Rows:
        equal = [tie for ties in subquery.tied.values() for tie in ties]
        return replace(side, columns=extended(side.columns, equal, one_end=self.one_end))

    # ---- equality

    def equated(self, condition, rows: Rows, sides: tuple[Rows, Rows] | None = None) -> Rows:
        """Returns the rows where a condition is true. With `sides`, only equalities of one side with the other count."""
        of_side = [{column for column, _ in side.columns} for side in sides or ()]
        compared = [both for both in equalities(condition) if not sides or across(*both, of_side)]
        before: list[tuple[int, Origins]] = []
        while rows.columns != before:  # equality is transitive
            before = rows.columns
            columns = dict(before)
            equal = []
            for one, other in compared:
                mine, theirs = self.of(one, rows), self.of(other, rows)
                equal.append((mine, theirs))
                for column in filter(is_column, (one, other)):
                    columns[id_of(column)] = mine | theirs | columns.get(id_of(column), {})
            all_equal = extended(list(columns.items()), equal, one_end=self.one_end)
            rows = replace(rows, columns=all_equal)
        return rows

    def of(self, expression, rows: Rows) -> Origins:
        """Returns the origins of an expression: a column, `coalesce` of two, a span or its ends, a truncated instant."""
        inner = unaliased(expression)
        kind = kind_of(inner)
        if is_column(inner):
            return rows.origins(id_of(inner))
        if kind == "OuterReference":
            return self._outside.get(id_of(inner.e()), {})
        if kind == "Coalesce":
            parts = seq(inner.children())
            if all(map(is_column, parts)):
                return rows.pairs.get(frozenset(map(id_of, parts)), {})
        if kind == "GetStructField" and inner.child().dataType().catalogString() == SPAN:
            return end_of(self.of(inner.child(), rows), ENDS[inner.ordinal()])
        if kind == "CreateNamedStruct" and inner.dataType().catalogString() == SPAN:
            start, end = (self.of(e, rows) for e in seq(inner.children())[1::2])
            whole = span_of(start)
            return whole if (end_of(whole, "start"), end_of(whole, "end")) == (start, end) else {}
        if instant := truncated(inner):
            column, unit = instant
            origins = rows.origins(id_of(column))
            by_name = all(isinstance(name, str) for name in origins.values())
            return {n: Truncated(str(name), unit) for n, name in origins.items()} if by_name else {}
        return {}


def _together(*several: Mapping[int, list[Equal]]) -> dict[int, list[Equal]]:
    numbers = {number for ties_of in several for number in ties_of}
    return {
        number: [tie for n, tie in enumerate(ties) if tie not in ties[:n]]
        for number in numbers
        if (ties := [tie for ties_of in several for tie in ties_of.get(number, ())])
    }


def _over(plan, below: Rows, columns: list[tuple[int, Origins]]) -> Rows:
    """Returns the rows of an operator over those of another one."""
    return Rows(plan, columns, (below,), below.uses, below.pairs, from_input=below.from_input)


def _uses(several: Iterable[Rows]) -> dict[int, str]:
    return {number: name for rows in several for number, name in rows.uses.items()}


# ---- operators


def _passed(plan, below: Rows) -> Rows:
    return _over(plan, below, [(column, below.origins(column)) for column in ids(plan)])


def _project(walk: Walk, plan, below: Rows) -> Rows:
    return _over(plan, below, [(id_of(e), walk.of(e, below)) for e in seq(plan.projectList())])


def _filter(walk: Walk, plan, below: Rows) -> Rows:
    """Returns the rows that pass a filter, which may be the condition of a join that SQL has as a list of tables."""
    return _over(plan, below, walk.equated(plan.condition(), below).columns)


def _aggregate(walk: Walk, plan, below: Rows) -> Rows:
    grouping = [unaliased(e) for e in seq(plan.groupingExpressions())]
    grouped = walk.within(grouping, below)
    columns = []
    for expression in seq(plan.aggregateExpressions()):
        own = unaliased(expression)
        if kind_of(own) == "AggregateExpression" and not own.filter().isDefined():
            function = own.aggregateFunction()  # of values that are all the same
            own = function.child() if kind_of(function) in ("Max", "Min") else own
        is_key = any(own.semanticEquals(by) for by in grouping)
        columns.append((id_of(expression), walk.of(own, below if is_key else grouped)))
    driven = below.from_input and bool(grouping)
    return replace(_over(plan, below, columns), pairs={}, from_input=driven)


def _deduplicate(walk: Walk, plan, below: Rows) -> Rows:
    return replace(_passed(plan, walk.within(seq(plan.keys()), below)), below=(below,))


def _window(walk: Walk, plan, below: Rows) -> Rows:
    groups = walk.within(seq(plan.partitionSpec()), below)
    return replace(_passed(plan, groups), below=(below,))


def _expand(walk: Walk, plan, below: Rows) -> Rows:
    """Returns the rows of grouping sets: each row once for each set, some columns null."""
    sets = [[walk.of(e, below) for e in seq(values)] for values in seq(plan.projections())]
    columns = [
        (column, alike[0] if all(values == alike[0] for values in alike) else {})
        for column, alike in zip(ids(plan), zip(*sets, strict=True), strict=True)
    ]
    return replace(_over(plan, below, columns), pairs={})


def _union(walk: Walk, plan, *below: Rows) -> Rows:
    uses = _uses(below)
    columns = []
    for place, column in enumerate(ids(plan)):
        parts = [side.columns[place][1] for side in below]
        origins = {n: value for part in parts for n, value in part.items()}
        # where one part lacks the column, two columns of one origin would not be equal
        columns.append((column, origins if uses.keys() <= origins.keys() else {}))
    driven = all(side.from_input for side in below)
    return Rows(plan, columns, below, uses, from_input=driven)


def _compared(walk: Walk, plan, left: Rows, right: Rows) -> Rows:
    """Returns the rows of INTERSECT or EXCEPT, which compare whole rows."""
    places = zip(ids(plan), left.columns, right.columns, strict=True)
    columns = [(column, one | other) for column, (_, one), (_, other) in places]
    driven = left.from_input or (right.from_input and "Intersect" in plan.nodeName())
    return Rows(plan, columns, (left, right), left.uses | right.uses, from_input=driven)


def _join(walk: Walk, plan, left: Rows, right: Rows) -> Rows:
    how = plan.joinType().sql()
    uses = left.uses | right.uses
    both = Rows(plan, [*left.columns, *right.columns], (left, right), uses)
    both.pairs = left.pairs | right.pairs if how in _INNER else {}
    condition = plan.condition()
    sides = (left, right)
    matching = both
    if condition.isDefined():
        across = None if how in _INNER else sides
        matching = walk.equated(condition.get(), both, across)
    pairs = _full(condition, matching, *sides) if how == "FULL OUTER" else both.pairs
    from_left = how in (*_INNER, "LEFT OUTER", "LEFT SEMI", "LEFT ANTI")
    from_right = how in (*_INNER, "RIGHT OUTER")
    passing = {column for column, _ in left.columns} if from_left else set()
    passing |= {column for column, _ in right.columns} if from_right else set()
    columns = [
        (column, matching.origins(column) if column in passing else {}) for column in ids(plan)
    ]
    driven = {"FULL OUTER": left.from_input and right.from_input}
    driven |= dict.fromkeys(_INNER, left.from_input or right.from_input)
    one_side = left.from_input if from_left else right.from_input
    rows = Rows(plan, columns, sides, uses, pairs, from_input=driven.get(how, one_side))
    if condition.isDefined() and walk.outside_uses:
        tied = walk.with_own_ties(walk.equated(condition.get(), both)).tied
        # without a match, the row of the other side passes untied
        passes = {"LEFT OUTER": left.uses, "LEFT ANTI": left.uses, "RIGHT OUTER": right.uses}
        untied = uses if how == "FULL OUTER" else passes.get(how, {})
        rows.tied = {number: tie for number, tie in tied.items() if number not in untied}
    return rows


def _full(condition, matching: Rows, *sides: Rows) -> dict[frozenset[int], Origins]:
    """Returns the origins of `coalesce` of two columns, one of each side, that a full join compares."""
    pairs = {}
    of_side = [{column for column, _ in side.columns} for side in sides]
    for one, other in equalities(condition.get()) if condition.isDefined() else ():
        if is_column(one) and is_column(other) and across(one, other, of_side):
            both = (id_of(one), id_of(other))
            pairs[frozenset(both)] = matching.origins(both[0]) | matching.origins(both[1])
    return pairs


def _opaque(walk: Walk, plan, below: Rows) -> Rows:
    """Returns the rows of a Python function over rows or groups, which is trusted to keep one column."""
    seen = below
    if plan.nodeName().startswith("FlatMapGroups"):
        seen = walk.within(seq(plan.groupingAttributes()), below)
    names = {id_of(a): a.name() for a in seq(below.plan.output())}
    trusted: Origins = next((o for i, o in seen.columns if names.get(i) == walk.named), {})
    output = seq(plan.output())
    columns = [(id_of(a), trusted if a.name() == walk.named else {}) for a in output]
    return replace(_over(plan, below, columns), pairs={})


_OPERATORS: Mapping[str, Callable[..., Rows]] = {
    "Aggregate": _aggregate,
    "Deduplicate": _deduplicate,
    "Expand": _expand,
    "Filter": _filter,
    "Join": _join,
    "LateralJoin": _join,
    "Project": _project,
    "Union": _union,
    "Window": _window,
    **dict.fromkeys(("Except", "ExceptAll", "Intersect", "IntersectAll"), _compared),
}
