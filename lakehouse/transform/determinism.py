"""What a function must not do, found in its plan before it runs: what two runs may differ by, what loses rows; with remedies."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame

from lakehouse.declare.columns import ARRIVAL, REACH, WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError

_CLOCK = {
    "CurrentTimestamp",
    "Now",
    "CurrentDate",
    "CurrentTime",
    "LocalTimestamp",
    "UnixTimestampNow",
    "CurrentBatchTimestamp",
}
_ORDER = {"First", "Last", "AnyValue", "CollectList", "ListAgg", "ApproximatePercentile"}
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
}
_GROUPS = {
    "Window",
    "FlatMapGroupsInArrow",
    "FlatMapGroupsInPandas",
    "FlatMapCoGroupsInArrow",
    "FlatMapCoGroupsInPandas",
}
_WHOLE = _GROUPS | {
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


def check(table: Table, rows: DataFrame, *, row_preserving: bool) -> None:
    """Raises DeclarationError if the plan of `rows`, the function's result, holds that by which stream and batch may differ.

    A table declared with deterministic=False may hold all but operators over whole batches, which
    make no sense in a stream.
    """
    where = f"table={table.name}"
    plan = rows._jdf.queryExecution().analyzed()
    if row_preserving and (found := sorted(_on_rows(plan, table))):
        raise DeclarationError(
            f"{where}, operators={', '.join(found)}: a row table is computed row by row, and a micro-batch does "
            "not hold all rows; "
            "declare a window, deduplicate=duplicates(...), or context=around(...); what is grouped by _arrival is of one row"
        )
    if table.context and (within := _remembered(plan)) > table.context.before:
        raise DeclarationError(
            f"{where}, within={within}: a range is read from {table.context.before} before it, by context=around(before=...), "
            "and what a process function remembers for longer would be cut off; declare the longer before=, or a shorter within="
        )
    if table.context and table.deterministic:
        for shown in _counting_rows(plan):
            raise DeclarationError(
                f"{where}, expression={shown}: its frame counts rows, and rows outside the interval ({table.context}) decide it; "
                "take a frame of event time, rangeBetween within the interval (the row before is max(struct(event time, ...)) "
                "over the frame that ends before the row); or declare deterministic=False, and its ranges stay UNVERIFIABLE"
            )
    if table.window:
        for shown, rule in _across_windows(plan):
            raise DeclarationError(f"{where}, {shown}: {rule}")
    if not table.deterministic:
        return
    for name, rule in _found(plan, table.tolerance):
        raise DeclarationError(
            f"{where}, {name}: {rule}; or declare deterministic=False, and its ranges stay UNVERIFIABLE"
        )


def check_keyed(table: Table, rows: DataFrame) -> None:
    """As `check`, of a keyed or versioned table.

    Raises DeclarationError also where Spark could not keep a state up to date.
    """
    if table.keeps == "versions":
        check(table, rows, row_preserving=True)
        return
    where, node = f"table={table.name}, keeps='latest'", rows._jdf.queryExecution().analyzed()
    found = sorted(
        n.nodeName()
        for n in _nodes(node)
        if _of_itself(n) or (n.nodeName() in _WHOLE and _reads(n))
    )
    if found != ["Aggregate"]:
        raise DeclarationError(
            f"{where}, operators={', '.join(found) or 'none'}: a keyed table is one aggregation of the ingest table's rows by "
            "its keys; write groupBy(...).agg(...) once (the latest row of a key is max_by(..., event time))"
        )
    check(table, rows, row_preserving=False)
    if any(
        kind == "AggregateExpression" and e.isDistinct()
        for n in _nodes(node)
        for e, kind, _ in _of(n)
    ):
        raise DeclarationError(
            f"{where}: distinct values are not counted in a keyed table; keep them as keys of their own"
        )
    while node.nodeName() != "Aggregate":
        if node.nodeName() == "Filter":
            raise DeclarationError(
                f"{where}: it filters after it has aggregated, and a key that does not pass any more would stay as it was; "
                "filter rows before, or the table where it is read"
            )
        node = node.children().apply(0)


def check_keeps_all(where: str, rows: DataFrame, inputs: Mapping[str, DataFrame]) -> None:
    """Raises DeclarationError unless each row of each input of an ingest table is in `rows`, its function's result, once."""
    read = sum((_operators(each) for each in inputs.values()), Counter())
    if others := _operators(rows) - read - Counter(Union=len(inputs) - 1):
        raise DeclarationError(
            f"{where}, operators={', '.join(sorted(others))}: an ingest table keeps every row that it reads, one for one; use "
            "select, withColumn and drop only (and unionByName, once for each of several topics), and do the rest in a table "
            "that reads it"
        )
    if unread := [name for name, each in inputs.items() if not _leaves(each) <= _leaves(rows)]:
        raise DeclarationError(
            f"{where}, inputs={', '.join(unread)}: an ingest table keeps every row that it reads; add it with "
            "unionByName, or remove it"
        )


def check_sessions(where: str, rows: DataFrame) -> None:
    """Raises DeclarationError if a table of sessions filters after its last aggregation."""
    node = rows._jdf.queryExecution().analyzed()
    while node.nodeName() != "Aggregate" and node.children().size():
        if node.nodeName() == "Filter":
            raise DeclarationError(
                f"{where}: it filters after it has aggregated, and Spark moves such a filter below the merging of sessions, "
                "which gives wrong sessions; filter rows before, or sessions where they are read"
            )
        node = node.children().apply(0)


def needs_whole_windows(rows: DataFrame) -> bool:
    """Whether a window table's function does what Spark's streams do not, or do a micro-batch late: more than one aggregation.

    Ranks within a window, duplicates taken out, distinct values counted, an aggregation of an
    aggregation, a join of its rows.
    """
    every = list(_nodes(rows._jdf.queryExecution().analyzed()))
    nodes = [n for n in every if n.nodeName() in _WHOLE and _has(n, WINDOW)]
    if any(_of_itself(node) for node in every):
        return True
    return [n.nodeName() for n in nodes] not in ([], ["Aggregate"]) or any(
        kind == "AggregateExpression" and expression.isDistinct()
        for node in nodes
        for expression, kind, _ in _of(node)
    )


def groups_by_window_alone(rows: DataFrame) -> bool:
    """Whether an aggregation is by the window and nothing else."""
    nodes = [
        n
        for n in _nodes(rows._jdf.queryExecution().analyzed())
        if n.nodeName() == "Aggregate" and _has(n, WINDOW)
    ]
    return any(node.groupingExpressions().size() == 1 for node in nodes)


def groups(rows: DataFrame) -> bool:
    """Whether rows of the driving input are grouped."""
    return any(
        n.nodeName() == "Aggregate" and _reads(n)
        for n in _nodes(rows._jdf.queryExecution().analyzed())
    )


def _counting_rows(plan) -> Iterator[str]:
    """Window functions over rows of the driving input that are framed by a number of rows: ROWS, ranks, lag, lead."""
    for node in _nodes(plan):
        if (
            node.nodeName() != "Window"
            or not _reads(node)
            or _named(ARRIVAL, _seq(node.partitionSpec()))
        ):
            continue
        for expression in _seq(node.windowExpressions()):
            if any(
                kind == "SpecifiedWindowFrame" and e.frameType().sql() == "ROWS"
                for e, kind, _ in _within(expression)
            ):
                yield expression.sql()


def _across_windows(plan) -> Iterator[tuple[str, str]]:
    """What makes a window's rows depend on other windows that happen to be computed with it."""
    rule = "it is over all windows that are computed at once"
    for node in _nodes(plan):
        kind = node.nodeName()
        if kind in ("GlobalLimit", "LocalLimit", "Offset", "Tail", "Sample") and _has(node, WINDOW):
            yield f"operators={kind}", f"{rule}; rank the rows of each, partitioned by window"
        elif (
            kind == "Join"
            and _of_itself(node)
            and len(_named(WINDOW, _option(node.condition()))) < 2
        ):
            yield (
                "operators=Join",
                "it joins its input with itself across windows; add window to what it is joined by",
            )
        elif kind == "Window" and _reads(node):
            parts = {
                a.name()
                for each in _seq(node.partitionSpec())
                for a in _seq(each.references().toSeq())
            }
            if WINDOW not in parts:
                yield (
                    f"expression={node.windowExpressions().apply(0).sql()}",
                    f"{rule}; add window to its PARTITION BY",
                )


def _found(plan, tolerance: float) -> Iterator[tuple[str, str]]:
    for expression, kind, parents in _expressions(plan):
        rule = _rule(expression, kind, parents, tolerance)
        if rule:
            yield f"expression={expression.sql()}", rule


def _rule(expression, kind: str, parents: frozenset[str], tolerance: float) -> str:
    if kind in _CLOCK:
        return (
            "two runs have two clocks; use the event time, or _arrival.time for the time of arrival"
        )
    if kind in _ORDER and not parents & _SORTED:
        return "it depends on the order in which rows come; use min, max, min_by, max_by, or sort what is collected"
    if kind == "CollectSet" and not parents & _COUNTED:
        return "its elements come in any order; put sort_array or size around it"
    if kind in _DOUBLES and not tolerance and _is_double(expression):
        return (
            "a sum of doubles depends on the order of adding; cast to decimal, or give a tolerance"
        )
    if (
        kind not in _ORDER | {"CollectSet"}
        and not expression.deterministic()
        and _all_deterministic(expression)
    ):
        return "it is another value in each run; compute it from the row"
    return ""


def _is_double(expression) -> bool:
    return any(
        each.dataType().typeName() in ("double", "float") for each in _seq(expression.children())
    )


def _all_deterministic(expression) -> bool:
    return all(each.deterministic() for each in _seq(expression.children()))


def _expressions(plan) -> Iterator[tuple[Any, str, frozenset[str]]]:
    """Every expression of a plan but columns and literals, its kind, and the kinds of those around it."""
    for node in _nodes(plan):
        if node.nodeName() == "CollectMetrics":
            continue
        yield from _of(node)


def _of(node) -> Iterator[tuple[Any, str, frozenset[str]]]:
    return _within(*_seq(node.expressions()))


def _within(*expressions) -> Iterator[tuple[Any, str, frozenset[str]]]:
    """The expressions, and those that they are made of."""
    todo: list[tuple[Any, frozenset[str]]] = [(each, frozenset()) for each in expressions]
    while todo:
        expression, around = todo.pop()
        kind = expression.getClass().getSimpleName()
        # each question to the JVM takes its time, and these are most
        if kind in (
            "AttributeReference",
            "Literal",
        ):
            continue
        yield expression, kind, around
        todo += [(child, around | {kind}) for child in _seq(expression.children())]


def _on_rows(plan, table: Table) -> set[str]:
    """The operators that take rows of the driving input, known by their arrival, together."""
    found = {
        node.nodeName()
        for node in _nodes(plan)
        if node.nodeName() in _WHOLE and _reads(node) and not _one_by_one(node)
    }
    # with an interval a frame of it (rangeBetween), or the function of a group, sees all its rows
    return (
        found - _GROUPS
        if table.context
        else found | {"Join" for node in _nodes(plan) if _of_itself(node)}
    )


def _remembered(plan) -> timedelta:
    """The longest that a process function in it remembers a row."""
    known = [
        a.metadata() for node in _nodes(plan) for a in _seq(node.output()) if a.name() == ARRIVAL
    ]
    return timedelta(
        microseconds=max((each.getLong(REACH) for each in known if each.contains(REACH)), default=0)
    )


def _one_by_one(node) -> bool:
    """Whether it groups by arrival, so that each group is of one row."""
    return node.nodeName() == "Aggregate" and bool(
        _named(ARRIVAL, _seq(node.groupingExpressions()))
    )


def _of_itself(node) -> bool:
    """Whether it joins the driving input with itself."""
    return node.nodeName() == "Join" and all(_reads(side) for side in _seq(node.children()))


def _reads(node) -> bool:
    """Whether it has rows of the driving input."""
    return any(
        a.name() == ARRIVAL for leaf in _seq(node.collectLeaves()) for a in _seq(leaf.output())
    )


def _named(column: str, expressions: list) -> set[int]:
    """The columns of that name that the expressions refer to, by id."""
    found = (a for each in expressions for a in _seq(each.references().toSeq()))
    return {a.exprId().id() for a in found if a.name() == column}


def _option(value) -> list:
    return [value.get()] if value.isDefined() else []


def _has(node, column: str) -> bool:
    """Whether rows with that column pass through the operator."""
    return any(a.name() == column for child in _seq(node.children()) for a in _seq(child.output()))


def _operators(rows: DataFrame) -> Counter[str]:
    """The operators of a plan that may drop or multiply rows."""
    names = (node.nodeName() for node in _nodes(rows._jdf.queryExecution().analyzed()))
    return Counter(
        name for name in names if name not in ("Project", "SubqueryAlias", "CollectMetrics")
    )


def _leaves(rows: DataFrame) -> set[int]:
    """What a plan reads, by the id of each first column."""
    return {
        leaf.output().apply(0).exprId().id()
        for leaf in _seq(rows._jdf.queryExecution().analyzed().collectLeaves())
    }


def _nodes(plan) -> Iterator[Any]:
    todo = [plan]
    while todo:
        node = todo.pop()
        yield node
        todo += _seq(node.children())


def _seq(values) -> list:
    return [values.apply(i) for i in range(values.size())]
