"""Spark's plan of a function's result, node by node and expression by expression, read without running it."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame


def analyzed(rows: DataFrame) -> Any:
    """Returns the plan of `rows` before it is optimised, with each common table expression where it is used."""
    jvm: Any = rows.sparkSession._jvm
    inline = jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False)
    return inline.apply(rows._jdf.queryExecution().analyzed())


def nodes(plan, *, subqueries: bool = True) -> Iterator[Any]:
    """Yields the operators of a plan, and those of its subqueries."""
    todo = [plan]
    while todo:
        node = todo.pop()
        yield node
        todo += seq(node.children())
        if subqueries:
            todo += seq(node.subqueries())


def expressions_of(node) -> Iterator[tuple[Any, str, frozenset[str]]]:
    return within(*seq(node.expressions()))


def within(*expressions) -> Iterator[tuple[Any, str, frozenset[str]]]:
    """Yields the expressions and their parts, but no columns and literals, with the kinds of those around them."""
    todo: list[tuple[Any, frozenset[str]]] = [(root, frozenset()) for root in expressions]
    while todo:
        expression, around = todo.pop()
        kind = kind_of(expression)
        # a call of the JVM takes time, and most expressions are of these kinds
        if kind in ("AttributeReference", "Literal"):
            continue
        yield expression, kind, around
        todo += [(child, around | {kind}) for child in seq(expression.children())]


def seq(values) -> list:
    return [values.apply(i) for i in range(values.size())]


def kind_of(expression) -> str:
    return expression.getClass().getSimpleName()


def is_column(expression) -> bool:
    return kind_of(expression) == "AttributeReference"


def id_of(expression) -> int:
    """Returns the id of a column, by which Spark knows it under any name."""
    return expression.exprId().id()


def ids(plan) -> list[int]:
    """Returns the ids of an operator's columns."""
    return [id_of(column) for column in seq(plan.output())]


def references(expression) -> list:
    """Returns the columns that an expression is made of."""
    return seq(expression.references().toSeq())


def columns_read(plan) -> list:
    """Returns the columns of the leaves of a plan: of the inputs that it reads."""
    return [column for leaf in seq(plan.collectLeaves()) for column in seq(leaf.output())]


def unaliased(expression):
    return expression.child() if kind_of(expression) == "Alias" else expression
