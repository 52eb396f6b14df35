"""Spark's plan of a function's result, node by node and expression by expression: what is asked of it without running it."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame


def analyzed(rows: DataFrame) -> Any:
    """The plan of `rows` before it is optimised, each common table expression where it is used."""
    jvm: Any = rows.sparkSession._jvm
    inline = jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False)
    return inline.apply(rows._jdf.queryExecution().analyzed())


def nodes(plan, *, subqueries: bool = True) -> Iterator[Any]:
    """The operators of a plan, and those of its subqueries."""
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
    """The expressions, and those that they are made of."""
    todo: list[tuple[Any, frozenset[str]]] = [(each, frozenset()) for each in expressions]
    while todo:
        expression, around = todo.pop()
        kind = kind_of(expression)
        # each question to the JVM takes its time, and these are most
        if kind in (
            "AttributeReference",
            "Literal",
        ):
            continue
        yield expression, kind, around
        todo += [(child, around | {kind}) for child in seq(expression.children())]


def seq(values) -> list:
    return [values.apply(i) for i in range(values.size())]


def kind_of(expression) -> str:
    return expression.getClass().getSimpleName()


def unaliased(expression):
    return expression.child() if kind_of(expression) == "Alias" else expression
