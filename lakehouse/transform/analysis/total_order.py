"""Places of rows in an order that leaves some of them equal, so that the way they are read decides which comes first."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from lakehouse.declare.columns import ARRIVAL, PLACE, WINDOW
from lakehouse.transform.analysis.equal_columns import equalities
from lakehouse.transform.analysis.plan_tree import (
    id_of,
    ids,
    is_column,
    kind_of,
    nodes,
    seq,
    unaliased,
    within,
)
from lakehouse.transform.analysis.shapes import ONE_TOPIC, reads

TAKING = ("GlobalLimit", "Offset", "Tail")
ORDERED = {"First", "Last", "AnyValue", "CollectList", "ListAgg"}  # they read rows one by one
_PLACES = {"RowNumber", "NTile", "Lag", "Lead", "NthValue"}
_PASSING = {
    *("CollectMetrics", "Filter", "ResolvedHint", "Sort", "SubqueryAlias", "View", "Window"),
    *("GlobalLimit", "LocalLimit", "Offset", "Tail"),
}
_ONE_SIDE = ("LEFT SEMI", "LEFT ANTI")
_SINGLE = {"Literal", "OuterReference"}  # they have one value for all rows
_POSITION = {"partition", "offset"}  # of a record in its topic
_PLACE = {"topic", *_POSITION}  # of a record of several topics
_MOST = 16  # keys that are followed

# columns, by id, in which no two rows are equal, or rows that are equal in all
_Key = frozenset[int]


def takes_places(expression) -> bool:
    """Returns True if a window expression depends on the places of rows, and not only on the values that order them."""
    kinds = {kind for _, kind, _ in within(expression)}
    frames = (part for part, kind, _ in within(expression) if kind == "SpecifiedWindowFrame")
    # unbounded: all rows, as of an aggregate OVER (PARTITION BY ...)
    by_rows = any(f.frameType().sql() == "ROWS" and not f.isUnbounded() for f in frames)
    return bool(kinds & (_PLACES | ORDERED)) or ("AggregateExpression" in kinds and by_rows)


def takes_any(node) -> bool:
    """Returns True if an operator keeps one of several rows that are the same in some columns only."""
    return node.nodeName() == "Deduplicate" and node.keys().size() < node.output().size()


def equal_places(plan) -> Iterator[str]:
    """Yields operators and expressions that choose rows of the driving input by place, where different rows may tie."""
    for node in nodes(plan):
        kind = node.nodeName()
        if not reads(node):
            continue
        if kind == "Window" and any(map(takes_places, seq(node.windowExpressions()))):
            by = [*seq(node.partitionSpec()), *(e.child() for e in seq(node.orderSpec()))]
            if not _decides(by, node.child()):
                for expression in filter(takes_places, seq(node.windowExpressions())):
                    yield f"expression={expression.sql()}"
        elif takes_any(node):
            if not _decides(seq(node.keys()), node.child()):
                yield f"operators={kind}"
        elif kind in TAKING and node.children().apply(0).nodeName() not in TAKING:
            order = sorted_by(node)
            if order is None or not _decides(*order):
                yield f"operators={kind}"


def sorted_by(node) -> tuple[list[Any], Any] | None:
    """Returns what orders the rows that an operator takes, and the operator that sorts them; None without an order."""
    while node.nodeName() in (*TAKING, "LocalLimit", "Project", "SubqueryAlias"):
        node = node.children().apply(0)
    if node.nodeName() != "Sort":
        return None
    return [each.child() for each in seq(node.order())], node


def _decides(expressions: Iterable[Any], rows) -> bool:
    """Returns True if rows that are equal in the expressions are one row, or equal in all columns."""
    columns: set[int] = set()
    positions: dict[int, set[str]] = {}
    computed = _computed(rows)
    todo = list(expressions)
    while todo:
        expression = unaliased(todo.pop())
        kind = kind_of(expression)
        if is_column(expression):
            columns.add(id_of(expression))
            todo += [computed[id_of(expression)]] if id_of(expression) in computed else []
        elif kind == "CreateNamedStruct":
            todo += seq(expression.children())[1::2]
        elif kind == "GetStructField" and is_column(expression.child()):
            fields = positions.setdefault(id_of(expression.child()), set())
            fields.add(expression.extractFieldName())
    arrivals = {id_of(a): _place(a, rows) for a in seq(rows.output()) if a.name() == ARRIVAL}
    columns |= {column for column, by in arrivals.items() if positions.get(column, set()) >= by}
    return any(key <= columns for key in _keys(rows))


def _place(arrival, rows) -> set[str]:
    """Returns the fields of `_arrival` in which no two rows are equal."""
    metadata = arrival.metadata()
    is_of_one = metadata.contains(ONE_TOPIC) and metadata.getBoolean(ONE_TOPIC)
    # a union's columns are marked as those of its first part alone
    is_united = any(node.nodeName() == "Union" for node in nodes(rows))
    position = _POSITION if is_of_one and not is_united else _PLACE
    return position | ({PLACE} & set(arrival.dataType().fieldNames()))


def _computed(rows) -> dict[int, Any]:
    """Returns the expressions of projections by column id: Spark computes what orders a window in one."""
    computed: dict[int, Any] = {}
    while rows.nodeName() == "Project" or rows.nodeName() in _PASSING:
        if rows.nodeName() == "Project":
            computed |= {id_of(e): e for e in seq(rows.projectList()) if kind_of(e) == "Alias"}
        rows = rows.children().apply(0)
    return computed


def _constant(rows) -> _Key:
    """Returns the columns that a filter fixes to one value: a literal, or a column of the query around this one."""
    pairs = [order for pair in equalities(rows.condition()) for order in (pair, pair[::-1])]
    return frozenset(
        id_of(one) for one, other in pairs if is_column(one) and kind_of(other) in _SINGLE
    )


def _keys(rows) -> list[_Key]:
    output = seq(rows.output())
    every = frozenset(ids(rows))
    kind, below = rows.nodeName(), seq(rows.children())
    keys: list[_Key] = []
    if not below:
        keys = [frozenset(id_of(a) for a in output if a.name() in (ARRIVAL, WINDOW))]
        keys = keys if any(a.name() == ARRIVAL for a in output) else []
    elif kind == "Filter":
        fixed = _constant(rows)
        keys = [key - fixed for key in _keys(below[0])]
    elif kind in _PASSING:
        keys = _keys(below[0])
    elif kind == "Project":
        keys = list(_renamed(_keys(below[0]), seq(rows.projectList())))
    elif kind == "Aggregate":
        keys = _grouped(rows)
    elif kind == "Deduplicate":
        keys = [frozenset(map(id_of, seq(rows.keys())))]
    elif kind == "Join":
        keys = _joined(rows, *map(_keys, below))
    return [*(key for key in keys if key <= every), every][:_MOST]


def _renamed(keys: list[_Key], columns: list[Any]) -> Iterator[_Key]:
    places: dict[int, int] = {}
    for column in columns:
        own = unaliased(column)
        if is_column(own):
            places.setdefault(id_of(own), id_of(column))
    for key in keys:
        if key <= places.keys():
            yield frozenset(places[column] for column in key)


def _grouped(rows) -> list[_Key]:
    outputs = seq(rows.aggregateExpressions())
    key = []
    for by in seq(rows.groupingExpressions()):
        shown = [e for e in outputs if unaliased(e).semanticEquals(unaliased(by))]
        if not shown:
            return []
        key.append(id_of(shown[0]))
    return [frozenset(key)]


def _joined(rows, left: list[_Key], right: list[_Key]) -> list[_Key]:
    if rows.joinType().sql() in _ONE_SIDE:
        return left
    keys = [one | other for one, other in product(left, right)]
    condition = rows.condition()
    equal = list(equalities(condition.get())) if condition.isDefined() else []
    for one, other in equal if rows.joinType().sql() == "INNER" else ():
        if is_column(one) and is_column(other):
            a, b = id_of(one), id_of(other)
            keys += [key - {b} | {a} for key in keys if b in key]
            keys += [key - {a} | {b} for key in keys if a in key and b not in key]
    return list(dict.fromkeys(sorted(keys, key=len)))[:_MOST]
