"""Columns by which rows of a function's result belong to rows of its inputs, found in its plan.

A column qualifies if each row of the result is made only of rows with the same value in a column of
theirs: a column that rows were grouped, joined, ranked or united by. When rows of the inputs change,
the rows of the result with their values are computed again, and no others.

`origins` finds the input columns that a column is equal to. The day or hour of an instant will also do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.columns import quoted
from lakehouse.storage.keyed.row_index import Value
from lakehouse.transform.analysis.equal_columns import End, Origins
from lakehouse.transform.analysis.origins import Walk
from lakehouse.transform.analysis.plan_tree import analyzed


@dataclass(frozen=True, slots=True)
class Uses:
    """The columns by which rows of a result belong to rows of its inputs, and the same columns of each use of an input.

    Without columns, any row of an input may change any row of the result.
    """

    columns: tuple[str, ...]
    of: Mapping[str, Sequence[tuple[Value, ...]]]  # input -> a tuple for each use of it


def uses(rows: DataFrame, keys: Sequence[str]) -> Uses:
    """Returns the `Uses` of a function's result over marked inputs, with the `keys` alone if these will do.

    Truncated columns are used only if no plain column will do, and then with all of the keys.
    """
    node = Walk().rows(analyzed(rows))
    names = rows.columns
    if node.has_subquery:
        return Uses((), {})
    shared: dict[str, dict[int, Value]] = {}
    origins_of = dict(zip(names, (_values(origins) for _, origins in node.columns), strict=True))
    for name in sorted(origins_of, key=lambda name: name not in keys):
        of_all = node.uses and origins_of[name].keys() == node.uses.keys()
        # one of several columns that are always equal is enough
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
    uses_of: dict[str, list[tuple[Value, ...]]] = {}
    for number, name in node.uses.items():
        columns = tuple(shared[key_column][number] for key_column in chosen)
        if columns not in uses_of.setdefault(name, []):
            uses_of[name].append(columns)
    return Uses(chosen, uses_of)


def _values(origins: Origins) -> dict[int, Value]:
    """Returns the origins that can be looked up: all but ends of spans."""
    return {n: value for n, value in origins.items() if not isinstance(value, End)}


def values(use: Sequence[Value], names: Sequence[str]) -> list[Column]:
    """Returns the values of a use of an input, under the names of the result's columns."""
    return [_column(v).alias(n) for v, n in zip(use, names, strict=True)]


def _column(value: Value) -> Column:
    if isinstance(value, str):
        return F.col(quoted(value))
    unit, instant = value.unit, F.col(quoted(value.column))
    return F.to_date(instant) if unit == "date" else F.date_trunc(unit, instant)


def belonging(
    rows: DataFrame,
    few: DataFrame,
    uses: Sequence[Sequence[Value]],
    columns: Sequence[str],
) -> DataFrame:
    """Returns the rows that belong to one of the `few` groups, by any of the `uses` of their columns."""
    places = {name: f"_group_{n}" for n, name in enumerate(few.columns)}
    groups = few.withColumnsRenamed(places)
    parts = []
    # one after the other: a condition with OR would compare each row with each group
    for use in uses:
        pairs = zip(use, columns, strict=True)
        same = reduce(and_, (_column(v).eqNullSafe(F.col(places[group])) for v, group in pairs))
        parts.append(rows.join(groups, same, "left_semi"))
        rows = rows.join(groups, same, "left_anti")
    return reduce(DataFrame.union, parts)
