"""Operations that a function must not use, found in its plan before it runs: two runs may differ by them, or they lose rows."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import chain

from pyspark.sql import DataFrame

from lakehouse.declare.columns import ARRIVAL, REACH
from lakehouse.declare.remarks import refuse
from lakehouse.declare.table import Table
from lakehouse.declare.windows import Interval
from lakehouse.errors import DeclarationError
from lakehouse.transform.analysis import clocks
from lakehouse.transform.analysis.plan_tree import (
    analyzed,
    expressions_of,
    id_of,
    nodes,
    references,
    seq,
    within,
)
from lakehouse.transform.analysis.shapes import GROUPS, WHOLE, asks_itself, joins_itself, reads
from lakehouse.transform.analysis.total_order import (
    ORDERED,
    TAKING,
    equal_places,
    sorted_by,
    takes_any,
    takes_places,
)
from lakehouse.transform.analysis.window_rule import across_windows

_ORDER = ORDERED | {
    "ApproximatePercentile",
    "HistogramNumeric",
    "ApproxTopK",
    "ApproxTopKAccumulate",
    "ApproxTopKCombine",
}
_SKETCHES = ("Hll", "Kll", "Theta", "Tuple")
_EQUAL_PLACES = (
    "of rows that are equal in what orders them it takes any, and stream and batch read them differently; order also by columns "
    "that no two rows have in common, such as _arrival (or its topic, partition and offset) or all that it is grouped by, or "
    "use rank"
)
_OF_MANY_ROWS = (
    "declare a @window_table or @keyed_table, deduplicate=duplicates(...), ttl= for process(...), or context=around(...); what "
    "is grouped by _arrival is of one row"
)
_OF_JOINS = (
    "join rows near each other in time with context=around(...), those of one window in a @window_table by the column window, "
    "or all that ever came in a @keyed_table"
)
_BY = {"MaxBy", "MinBy"}
_SORTED = {"SortArray", "ArraySort"}
_COUNTED = _SORTED | {"Size", "ArrayContains"}
_DOUBLES = {
    "Sum",
    "Average",
    "StddevPop",
    "StddevSamp",
    "VariancePop",
    "VarianceSamp",
    "Corr",
    "CovPopulation",
    "CovSample",
    "Skewness",
    "Kurtosis",
    "Product",
    "RegrAvgX",
    "RegrAvgY",
    "RegrIntercept",
    "RegrR2",
    "RegrSlope",
    "RegrSXX",
    "RegrSXY",
    "RegrSYY",
}


def check(table: Table, rows: DataFrame) -> None:
    """Raises DeclarationError if stream and batch may differ by the plan of `rows`, the function's result.

    It lists all remarks at once. With deterministic=False only operators over whole batches are refused, which make no
    sense in a stream. For a table computed from all rows at once (keyed, versioned, a report), it also refuses rows
    chosen without an order: another computation would choose other rows.
    """
    kind = table.kind
    row_preserving = kind.is_row_by_row or kind.keeps_versions
    remarks = _remarks(table, rows, row_preserving=row_preserving)
    refuse(remarks if kind.has_late_rows else chain(remarks, _taking_any(table, rows)))


def _remarks(table: Table, rows: DataFrame, *, row_preserving: bool) -> Iterator[str]:
    where = f"table={table.name}"
    plan = analyzed(rows)
    if row_preserving and (operators := sorted(_on_rows(plan, table))):
        remedy = _OF_JOINS if operators == ["Join"] else _OF_MANY_ROWS
        yield (
            f"{where}, operators={', '.join(operators)}: a row table is computed row by row, and a micro-batch does "
            f"not hold all rows; {remedy}"
        )
    if table.context:
        yield from _beyond_context(table, table.context, plan)
    if table.window and not table.kind.is_report:  # of which a partition is computed by itself
        for shown, rule in across_windows(rows, one_end=table.window.starts_apart):
            yield f"{where}, {shown}: {rule}"
    if table.deterministic:
        yield from _by_chance(table, rows, plan)


def _beyond_context(table: Table, context: Interval, plan) -> Iterator[str]:
    where = f"table={table.name}"
    if (within := _remembered(plan)) > context.before:
        yield (
            f"{where}, within={within}: a range is read from {context.before} before it, by context=around(before=...), "
            "and what a process function remembers for longer would be cut off; declare the longer before=, or a shorter within="
        )
    for shown in _counting_rows(plan) if table.deterministic else ():
        yield (
            f"{where}, expression={shown}: its frame counts rows, and rows outside the interval ({context}) decide it; "
            "take a frame of event time, rangeBetween within the interval (the row before is max(struct(event time, ...)) "
            "over the frame that ends before the row); or declare deterministic=False, and its ranges stay UNVERIFIABLE"
        )


def _by_chance(table: Table, rows: DataFrame, plan) -> Iterator[str]:
    """Yields expressions by which two runs over the same rows may differ."""
    where = f"table={table.name}"
    if table.window or table.kind.is_upserted:
        yield from _by_collation(table, rows)
    chance = [*clocks.in_sql(table), *_by_expressions(plan, table.tolerance)]
    if table.window and not table.kind.is_report:
        chance += [(shown, _EQUAL_PLACES) for shown in equal_places(plan)]
    for shown, rule in chance:
        yield f"{where}, {shown}: {rule}; {clocks.UNVERIFIABLE}"


def _by_collation(table: Table, rows: DataFrame) -> Iterator[str]:
    collated = {name for name, dtype in rows.dtypes if dtype.startswith("string collate")}
    if named := sorted(set(table.keys) & collated):
        yield (
            f"table={table.name}, keys={', '.join(named)}: by its collation texts that differ are one key, and which of them a "
            "row shows is decided by the order in which they come; group by lower(...) or upper(...), or CAST(... AS STRING)"
        )


def _taking_any(table: Table, rows: DataFrame) -> Iterator[str]:
    for node in nodes(analyzed(rows)) if table.deterministic else ():
        is_unsorted_limit = node.nodeName() in TAKING and sorted_by(node) is None
        if is_unsorted_limit or takes_any(node) or node.nodeName() == "Sample":
            yield (
                f"table={table.name}, operators={node.nodeName()}: which rows it takes is decided by the order in which they are "
                "read; sort them before by columns that no two rows have in common, or use max_by; or declare "
                "deterministic=False, and the table stays UNVERIFIABLE"
            )


def ties(rows: DataFrame) -> list[str]:
    """Returns the expressions and operators in the plan of `rows` that choose any of several rows which tie.

    These are `max_by` and `min_by`, unless they order by all that they return; places in an ordered window,
    such as `row_number`; and LIMIT. The data decide whether rows tie, so this does not refuse a table, but
    explains a difference.
    """
    operations = []
    for node in nodes(analyzed(rows)):
        if node.nodeName() == "Window" and node.orderSpec().size():
            operations += [e.sql() for e in seq(node.windowExpressions()) if takes_places(e)]
        for expression, kind, _ in expressions_of(node):
            if kind in _BY and not _columns(expression, 0) <= _columns(expression, 1):
                operations.append(expression.sql())
        if node.nodeName() in TAKING and node.children().apply(0).nodeName() not in TAKING:
            operations.append(node.simpleString(100))
    return operations


def _columns(expression, child: int) -> set[int]:
    """Returns the ids of the columns that a child of the expression refers to."""
    return set(map(id_of, references(expression.children().apply(child))))


def check_keeps_all(where: str, rows: DataFrame, inputs: Mapping[str, DataFrame]) -> None:
    """Raises DeclarationError unless `rows`, an ingest table's result, has each row of each input once."""
    read = sum((_operators(frame) for frame in inputs.values()), Counter())
    if others := _operators(rows) - read - Counter(Union=len(inputs) - 1):
        raise DeclarationError(
            f"{where}, operators={', '.join(sorted(others))}: an ingest table keeps every row that it reads, one for one; use "
            "select, withColumn and drop only (and unionByName, once for each of several topics), and do the rest in a table "
            "that reads it"
        )
    if unread := [name for name, frame in inputs.items() if not _leaves(frame) <= _leaves(rows)]:
        raise DeclarationError(
            f"{where}, inputs={', '.join(unread)}: an ingest table keeps every row that it reads; add it with "
            "unionByName, or remove it"
        )


def check_sessions(where: str, rows: DataFrame) -> None:
    """Raises DeclarationError if a table of sessions filters after its last aggregation."""
    node = analyzed(rows)
    while node.nodeName() != "Aggregate" and node.children().size():
        if node.nodeName() == "Filter":
            raise DeclarationError(
                f"{where}: it filters after it has aggregated, and Spark moves such a filter below the merging of sessions, "
                "which gives wrong sessions; filter rows before, or sessions where they are read"
            )
        node = node.children().apply(0)


def _counting_rows(plan) -> Iterator[str]:
    """Yields window functions over rows of the driving input whose frame counts rows: ROWS, ranks, lag, lead."""
    for node in nodes(plan):
        is_window = node.nodeName() == "Window" and reads(node)
        if not is_window or _named(ARRIVAL, seq(node.partitionSpec())):
            continue
        for expression in seq(node.windowExpressions()):
            frames = (e for e, kind, _ in within(expression) if kind == "SpecifiedWindowFrame")
            if any(frame.frameType().sql() == "ROWS" for frame in frames):
                yield expression.sql()


def _by_expressions(plan, tolerance: float) -> Iterator[tuple[str, str]]:
    """Yields the expressions of a plan by which two runs may differ, each with its rule.

    An expression that reads rows one by one in the order of its window counts as sorted.
    """
    for node in nodes(plan):
        if node.nodeName() == "CollectMetrics":
            continue
        ordered = node.nodeName() == "Window" and node.orderSpec().size() > 0
        for expression, kind, parents in expressions_of(node):
            if ordered and kind in ORDERED and "WindowExpression" in parents:
                parents |= _SORTED
            if rule := _rule(expression, kind, parents, tolerance):
                yield f"expression={expression.sql()}", rule


def _rule(expression, kind: str, parents: frozenset[str], tolerance: float) -> str:
    if of_clock := clocks.rule_of(expression, kind):
        return of_clock
    if kind == "Mode" and not expression.reverseOpt().isDefined():
        return "of values that are as frequent it takes any; write mode() WITHIN GROUP (ORDER BY ...), or F.mode(..., True)"
    is_sorted_list = kind == "ListAgg" and expression.orderExpressions().size() > 0  # ORDER BY
    by_order = kind in _ORDER or (kind.startswith(_SKETCHES) and "Agg" in kind)
    if by_order and not (parents & _SORTED or is_sorted_list):
        return "it depends on the order in which rows come; use min, max, min_by, max_by, percentile, or sort what is collected"
    if kind == "CollectSet" and not parents & _COUNTED:
        return "its elements come in any order; put sort_array or size around it"
    if kind in _DOUBLES and not tolerance:
        types = {part.dataType().typeName() for part in seq(expression.children())}
        if types & {"double", "float"}:
            return "a sum of doubles depends on the order of adding; cast to decimal, or give a tolerance"
    if kind in _ORDER or kind == "CollectSet" or expression.deterministic():
        return ""
    if all(part.deterministic() for part in seq(expression.children())):
        return "it is another value in each run; compute it from the row"
    return ""


def _on_rows(plan, table: Table) -> set[str]:
    """Returns the operators that combine rows of the driving input, which are recognised by their arrival."""
    every = [
        node.nodeName()
        for node in nodes(plan, subqueries=not table.context)
        if node.nodeName() in WHOLE and reads(node) and not _is_by_arrival(node)
    ]
    operators = set(every)
    if any(not (table.context and query.references().size()) for query in asks_itself(plan)):
        operators.add("Subquery")
    # within an interval, a frame (rangeBetween) or the function of a group sees all its rows
    if table.context:
        return operators - GROUPS
    operators |= {"Join" for node in nodes(plan) if joins_itself(node)}
    # the process function goes on from the rows before
    process = {"FlatMapGroupsInArrow"} if every.count("FlatMapGroupsInArrow") == 1 else set()
    return operators - process if table.ttl else operators


def _remembered(plan) -> timedelta:
    """Returns the longest time that a process function in the plan remembers a row."""
    metadata = [a.metadata() for node in nodes(plan) for a in seq(node.output())]
    longest = max((each.getLong(REACH) for each in metadata if each.contains(REACH)), default=0)
    return timedelta(microseconds=longest)


def _is_by_arrival(node) -> bool:
    """Returns True if it groups by arrival, so that each group has one row."""
    return node.nodeName() == "Aggregate" and bool(_named(ARRIVAL, seq(node.groupingExpressions())))


def _named(column: str, expressions: list) -> set[int]:
    """Returns the ids of the columns of that name that the expressions refer to."""
    return {id_of(a) for e in expressions for a in references(e) if a.name() == column}


def _operators(rows: DataFrame) -> Counter[str]:
    """Returns the operators of a plan that may drop or multiply rows, with their counts."""
    names = (node.nodeName() for node in nodes(analyzed(rows)))
    return Counter(
        name for name in names if name not in ("Project", "SubqueryAlias", "View", "CollectMetrics")
    )


def _leaves(rows: DataFrame) -> set[int]:
    """Returns the leaves that a plan reads, each as the id of its first column."""
    return {id_of(leaf.output().apply(0)) for leaf in seq(analyzed(rows).collectLeaves())}
