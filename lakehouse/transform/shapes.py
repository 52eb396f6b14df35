"""What kind of operators a function is made of, by its plan: what decides how a stream computes it."""

from pyspark.sql import DataFrame

from lakehouse.declare.columns import ARRIVAL, WINDOW
from lakehouse.transform.plan_tree import analyzed, expressions_of, nodes, seq

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
