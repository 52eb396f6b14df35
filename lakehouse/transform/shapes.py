"""What kind of operators a function is made of, by its plan: what decides how a stream computes it."""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from lakehouse.declare.columns import ARRIVAL, WINDOW
from lakehouse.transform.plan_tree import (
    analyzed,
    expressions_of,
    kind_of,
    nodes,
    seq,
    unaliased,
)

GROUPS = {
    "Window",
    "FlatMapGroupsInArrow",
    "FlatMapGroupsInPandas",
    "FlatMapCoGroupsInArrow",
    "FlatMapCoGroupsInPandas",
}
WHOLE = GROUPS | {
    "Aggregate",
    "Intersect",
    "Except",
    "Distinct",
    "Deduplicate",
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "Tail",
    "Sample",
}

_MERGED = {"sum": "sum", "count": "sum", "count_if": "sum"} | {
    name: name for name in ("min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")
}


def is_one_aggregation(rows: DataFrame) -> bool:
    """Whether a keyed table's function is one aggregation, with nothing behind it that Spark could not keep up to date.

    No distinct values, and no filter: a key that does not pass any more would stay as it was.
    """
    node = analyzed(rows)
    every = list(nodes(node))
    together = [n for n in every if joins_itself(n) or (n.nodeName() in WHOLE and reads(n))]
    if [n.nodeName() for n in together] != ["Aggregate"] or any(
        kind == "AggregateExpression" and e.isDistinct()
        for n in every
        for e, kind, _ in expressions_of(n)
    ):
        return False
    while node.nodeName() != "Aggregate":
        if node.nodeName() not in ("Project", "SubqueryAlias"):
            return False
        node = node.children().apply(0)
    return True


def merging(rows: DataFrame, keys: Sequence[str]) -> dict[str, str] | None:
    """How each column of an aggregation by the keys is had from those of its parts: by which function of SQL.

    Sums are added, of counts as well, and the least is the least of the least. None if a column is had otherwise: an
    average, the value at the latest instant, a sum of binary fractions, which depends on their order.
    """
    node = analyzed(rows)
    names: dict[int, str] | None = (
        None  # of the columns that are kept, by the projections over the aggregation
    )
    while node.nodeName() != "Aggregate":
        if node.nodeName() == "Project":
            columns = [(each, unaliased(each)) for each in seq(node.projectList())]
            kept = [(own, of) for own, of in columns if names is None or _id(own) in names]
            if any(kind_of(of) != "AttributeReference" for _, of in kept):
                return None
            below = {_id(of): (names or {}).get(_id(own), own.name()) for own, of in kept}
            if len(below) < len(kept):
                return None
            names = below
        node = node.children().apply(0)
    by, found = [unaliased(each) for each in seq(node.groupingExpressions())], {}
    for each in seq(node.aggregateExpressions()):
        if names is not None and _id(each) not in names:
            continue
        computed, name = unaliased(each), (names or {}).get(_id(each), each.name())
        is_key = any(computed.semanticEquals(key) for key in by)
        found[name] = "" if is_key else _merged_by(computed)
        if not is_key and not found[name]:
            return None
    grouped = {name for name, how in found.items() if not how}
    return found if grouped == set(keys) and len(by) == len(keys) else None


def _id(expression) -> int:
    return expression.exprId().id()


def _merged_by(expression) -> str:
    if kind_of(expression) != "AggregateExpression":
        return ""
    function = expression.aggregateFunction()
    how = _MERGED.get(function.prettyName(), "")
    exact = function.dataType().simpleString() not in ("float", "double")
    return how if exact or how != "sum" else ""


def needs_whole_windows(rows: DataFrame) -> bool:
    """Whether a window table's function does what Spark's streams do not, or do a micro-batch late: more than one aggregation.

    Ranks within a window, duplicates taken out, distinct values counted, an aggregation of an
    aggregation, a join of its rows.
    """
    every = list(nodes(analyzed(rows)))
    together = [n for n in every if n.nodeName() in WHOLE and has(n, WINDOW)]
    if any(joins_itself(node) for node in every):
        return True
    return [n.nodeName() for n in together] not in ([], ["Aggregate"]) or any(
        kind == "AggregateExpression" and expression.isDistinct()
        for node in together
        for expression, kind, _ in expressions_of(node)
    )


def groups_by_window_alone(rows: DataFrame) -> bool:
    """Whether an aggregation is by the window and nothing else."""
    aggregates = [
        n for n in nodes(analyzed(rows)) if n.nodeName() == "Aggregate" and has(n, WINDOW)
    ]
    return any(node.groupingExpressions().size() == 1 for node in aggregates)


def groups(rows: DataFrame) -> bool:
    """Whether rows of the driving input are grouped."""
    return any(n.nodeName() == "Aggregate" and reads(n) for n in nodes(analyzed(rows)))


def reads(node) -> bool:
    """Whether it has rows of the driving input."""
    return any(
        a.name() == ARRIVAL for leaf in seq(node.collectLeaves()) for a in seq(leaf.output())
    )


def joins_itself(node) -> bool:
    """Whether it joins the driving input with itself."""
    return node.nodeName() == "Join" and all(reads(side) for side in seq(node.children()))


def has(node, column: str) -> bool:
    """Whether rows with that column pass through the operator."""
    return any(a.name() == column for child in seq(node.children()) for a in seq(child.output()))
