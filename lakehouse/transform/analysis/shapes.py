"""The kinds of operators in a function's plan, which decide how a stream computes it."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from lakehouse.declare.columns import ARRIVAL
from lakehouse.transform.analysis.equal_columns import SPAN
from lakehouse.transform.analysis.plan_tree import (
    analyzed,
    columns_read,
    expressions_of,
    id_of,
    ids,
    is_column,
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
ROW_BY_ROW = {"Project", "Filter", "SubqueryAlias", "View", "Generate", "ResolvedHint"}
SUBQUERIES = {"Exists", "LateralSubquery", "ListQuery", "ScalarSubquery", "DynamicPruningSubquery"}
_ASKING = {"Exists", "InSubquery", "LateralSubquery", "ScalarSubquery"}
INPUT = "lakehouse.input"
"""The key of a column's metadata that names its input. It marks rows of inputs."""
ONE_TOPIC = "lakehouse.one_topic"
"""The key of a column's metadata that is true if all rows of its input come from one topic."""
_MERGED = {"sum": "sum", "count": "sum", "count_if": "sum"} | {
    name: name for name in ("min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")
}


def marked(
    rows: DataFrame,
    name: str,
    never_null: Set[str] = frozenset(),
    *,
    of_one_topic: bool = False,
) -> DataFrame:
    """Returns no rows of an input, with columns that name the input."""
    mark = {INPUT: name, ONE_TOPIC: of_one_topic}
    columns = [
        StructField(f.name, f.dataType, f.name not in never_null, f.metadata | mark)
        for f in rows.schema
    ]
    return rows.sparkSession.createDataFrame([], StructType(columns))


def is_one_aggregation(rows: DataFrame, keys: Sequence[str]) -> bool:
    """Returns True if a keyed table's function is one aggregation that Spark can keep up to date.

    It has no distinct values and no filter, because a key that no longer passes would stay as it was. All that it groups
    by is among the keys: otherwise a key may have several rows, of which Spark returns only those that change.
    """
    node = analyzed(rows)
    every = list(nodes(node))
    together = [n for n in every if joins_itself(n) or (n.nodeName() in WHOLE and reads(n))]
    is_one = [n.nodeName() for n in together] == ["Aggregate"]
    if not is_one or list(asks_itself(node)) or any(map(_has_distinct, every)):
        return False
    output = dict(zip(rows.columns, ids(node), strict=True))
    shown = {output[key] for key in keys if key in output}
    while node.nodeName() != "Aggregate":
        if node.nodeName() == "Project":
            named = [unaliased(e) for e in seq(node.projectList()) if id_of(e) in shown]
            shown = {id_of(e) for e in named if is_column(e)}
        elif node.nodeName() != "SubqueryAlias":
            return False
        node = node.children().apply(0)
    computed = [unaliased(e) for e in seq(node.aggregateExpressions()) if id_of(e) in shown]
    grouping = [unaliased(e) for e in seq(node.groupingExpressions())]
    columns = [by for by in grouping if kind_of(by) != "Literal"]
    return all(any(e.semanticEquals(by) for e in computed) for by in columns)


def merging(rows: DataFrame, keys: Sequence[str]) -> Mapping[str, str] | None:
    """Returns the SQL function that merges each column of an aggregation by the keys from those of its parts.

    Sums and counts are added, and the minimum is that of the minima. None if a column cannot be merged: an average, the
    value at the latest instant, or a sum of binary fractions, which depends on their order.
    """
    aggregation = _aggregation_by(keys, rows)
    if aggregation is None or "Literal" in map(kind_of, aggregation.columns.values()):
        return None
    return aggregation.merged_by


def adding(rows: DataFrame, keys: Sequence[str]) -> list[str] | None:
    """Returns the sums and counts of an aggregation by the keys, which new rows add to and removed rows subtract from.

    It is one aggregation of one marked input (`INPUT`), of which each row counts by itself: filtered, projected, joined
    with reference tables. None for any other function. A key may be one value for all rows.
    """
    aggregation = _aggregation_by(keys, rows)
    if aggregation is None or set(aggregation.merged_by.values()) - {"", "sum"}:
        return None
    added = [name for name, how in aggregation.merged_by.items() if how]
    types = [aggregation.columns[name].dataType().typeName() for name in added]
    numbers = all(column.startswith(("long", "decimal")) for column in types)
    return added if numbers and _is_row_by_row(aggregation.node.children().apply(0)) else None


@dataclass(frozen=True, slots=True)
class _Aggregation:
    """An aggregation that is a whole function."""

    node: Any
    columns: Mapping[str, Any]  # their expressions
    # column -> the SQL function that merges it from its parts; empty for a key
    merged_by: Mapping[str, str]


def _aggregation_by(keys: Sequence[str], rows: DataFrame) -> _Aggregation | None:
    """Returns the aggregation by the keys that is the whole function; None if a column cannot be merged, or for another one."""
    aggregated = _aggregated(rows)
    if aggregated is None:
        return None
    node, columns = aggregated
    grouping = [unaliased(expression) for expression in seq(node.groupingExpressions())]
    constant = sum(kind_of(column) == "Literal" for column in columns.values())
    merged_by = {}
    for name, column in columns.items():
        is_key = kind_of(column) == "Literal" or any(map(column.semanticEquals, grouping))
        merged_by[name] = "" if is_key else _merged_by(column)
        if is_key != (name in keys) or not (is_key or merged_by[name]):
            return None
    if not columns.keys() >= set(keys) or len(grouping) + constant != len(keys):
        return None
    return _Aggregation(node, columns, merged_by)


def _aggregated(rows: DataFrame) -> tuple[Any, dict[str, Any]] | None:
    """Returns the aggregation that is the whole function, and the expression of each column; None for another function.

    Projections over it may choose and name columns, and add literals.
    """
    node = analyzed(rows)
    names = dict(zip(ids(node), rows.columns, strict=True))  # of the columns that are kept, by id
    computed: dict[str, Any] = {}
    while node.nodeName() != "Aggregate":
        if node.nodeName() == "Project":
            chosen = [column for column in seq(node.projectList()) if id_of(column) in names]
            inner = {names[id_of(column)]: unaliased(column) for column in chosen}
            literals = {name: own for name, own in inner.items() if kind_of(own) == "Literal"}
            computed |= literals
            passed = {name: own for name, own in inner.items() if name not in literals}
            if not all(map(is_column, passed.values())):
                return None
            names = {id_of(own): name for name, own in passed.items()}
            if len(names) < len(passed):
                return None
        elif node.nodeName() != "SubqueryAlias":
            return None
        node = node.children().apply(0)
    for expression in seq(node.aggregateExpressions()):
        if id_of(expression) in names:
            computed[names[id_of(expression)]] = unaliased(expression)
    return node, computed


def _is_row_by_row(node) -> bool:
    """Returns True if each row of the one input counts by itself."""
    if any(kind in SUBQUERIES for n in nodes(node) for _, kind, _ in expressions_of(n)):
        return False
    if _marked_leaves(node) != 1:
        return False
    while seq(node.children()):
        name, below = node.nodeName(), seq(node.children())
        reading = [_marked_leaves(side) > 0 for side in below]
        if name == "Join":
            if not of_one_side(node, reading):
                return False
        elif name not in ROW_BY_ROW:
            return False
        node = below[reading.index(True)]
    return True


def of_one_side(join, reading: Sequence[bool]) -> bool:
    """Returns True if each row of a join is made of one row of the side that reads the input; `reading` has the left first."""
    how = join.joinType().sql()
    of_left = ("INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI")
    return how in (of_left if reading[0] else ("INNER", "CROSS", "RIGHT OUTER"))


def _marked_leaves(node) -> int:
    leaves = [seq(leaf.output()) for leaf in seq(node.collectLeaves())]
    return sum(any(a.metadata().contains(INPUT) for a in output) for output in leaves)


def _merged_by(expression) -> str:
    if kind_of(expression) != "AggregateExpression":
        return ""
    function = expression.aggregateFunction()
    name, kind = function.prettyName(), function.dataType().simpleString()
    how = _MERGED.get(name, "")
    exact = kind not in ("float", "double")
    if name == "sum" and kind.startswith("decimal"):
        # with spark.sql.ansi.enabled=false a sum that overflows is null, as one without values is
        exact = function.evalContext().evalMode().toString() != "LEGACY"
    return how if (exact or how != "sum") and not expression.isDistinct() else ""


def needs_whole_windows(rows: DataFrame) -> bool:
    """Returns True if a window table's function has operators that Spark's streams lack, or run a micro-batch late.

    These are ranks within a window, removed duplicates, distinct counts, an aggregation of an aggregation or one
    that is not by the window itself, and a join of its rows.
    """
    rows_plan = analyzed(rows)
    every = list(nodes(rows_plan))
    together = [n for n in every if n.nodeName() in WHOLE and reads(n)]
    if any(joins_itself(node) for node in every) or list(asks_itself(rows_plan)):
        return True
    if [n.nodeName() for n in together] not in ([], ["Aggregate"]):
        return True
    # Spark knows no watermark of what is made of a span, such as a window
    by_window = all(any(map(_is_span, seq(n.groupingExpressions()))) for n in together)
    return not by_window or any(map(_has_distinct, together))


def _has_distinct(node) -> bool:
    """Returns True if an operator aggregates distinct values."""
    aggregates = (e for e, kind, _ in expressions_of(node) if kind == "AggregateExpression")
    return any(aggregate.isDistinct() for aggregate in aggregates)


def _is_span(expression) -> bool:
    return is_column(unaliased(expression)) and expression.dataType().catalogString() == SPAN


def groups_by_window_alone(rows: DataFrame) -> bool:
    """Returns True if an aggregation is by the window and nothing else."""
    aggregates = [n for n in nodes(analyzed(rows)) if n.nodeName() == "Aggregate" and reads(n)]
    return any(node.groupingExpressions().size() == 1 for node in aggregates)


def groups(rows: DataFrame) -> bool:
    """Returns True if rows of the driving input are grouped."""
    return any(n.nodeName() == "Aggregate" and reads(n) for n in nodes(analyzed(rows)))


def reads(node) -> bool:
    """Returns True if the node has rows of the driving input."""
    return any(column.name() == ARRIVAL for column in columns_read(node))


def joins_itself(node) -> bool:
    """Returns True if the node joins the driving input with itself."""
    return node.nodeName() == "Join" and all(reads(side) for side in seq(node.children()))


def asks_itself(plan) -> Iterator[Any]:
    """Yields the subqueries over the driving input, as expressions of the rows outside."""
    for node in nodes(plan):
        if not any(map(reads, seq(node.subqueries()))):
            continue
        for expression, kind, _ in expressions_of(node):
            query = expression.query() if kind == "InSubquery" else expression
            if kind in _ASKING and reads(query.plan()):
                yield expression
