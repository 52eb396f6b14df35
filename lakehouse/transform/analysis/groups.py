"""By which columns rows of a function's result belong together with rows of its inputs, found in its plan.

A column of the result is such a one if each of its rows is made of rows alone that have the same
value in a column of theirs: what it was grouped, joined, ranked and united by. So when rows of the
inputs change, the rows of the result that have these values are computed again, and no others.

Which columns of the inputs each one is equal to says `origins`; the day, hour or the like of one will do.
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
    """The columns of a result by which its rows belong to rows of its inputs, and of each use of an input the same columns there.

    Empty columns if there are none: any row of an input may then change any row of the result.
    """

    columns: tuple[str, ...]
    of: Mapping[str, Sequence[tuple[Value, ...]]]  # input -> a tuple for each use of it


def uses(rows: DataFrame, keys: Sequence[str]) -> Uses:
    """The `Uses` of a function's result over marked inputs, of the `keys` alone if these will do.

    By what is truncated only where no column will do as it is, and then by all of the keys.
    """
    node, names = Walk().rows(analyzed(rows)), rows.columns
    if node.has_subquery:
        return Uses((), {})
    shared: dict[str, dict[int, Value]] = {}
    origins_of = dict(zip(names, (_values(origins) for _, origins in node.columns), strict=True))
    for name in sorted(origins_of, key=lambda name: name not in keys):
        of_all = node.uses and origins_of[name].keys() == node.uses.keys()
        # of columns that are always equal one does
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
    of: dict[str, list[tuple[Value, ...]]] = {}
    for number, name in node.uses.items():
        columns = tuple(shared[each][number] for each in chosen)
        if columns not in of.setdefault(name, []):
            of[name].append(columns)
    return Uses(chosen, of)


def _values(origins: Origins) -> dict[int, Value]:
    """What can be looked up: ends of spans are left out."""
    return {n: value for n, value in origins.items() if not isinstance(value, End)}


def values(use: Sequence[Value], names: Sequence[str]) -> list[Column]:
    """The values of a use of an input, by the names of the columns of the result."""
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
    """The rows that belong to one of the `few` groups, by any of the `uses` of their columns."""
    places = {name: f"_group_{n}" for n, name in enumerate(few.columns)}
    groups, parts = F.broadcast(few.withColumnsRenamed(places)), []
    # one after the other: a condition with OR would hold each row against each group
    for use in uses:
        pairs = zip(use, columns, strict=True)
        same = reduce(and_, (_column(v).eqNullSafe(F.col(places[group])) for v, group in pairs))
        parts.append(rows.join(groups, same, "left_semi"))
        rows = rows.join(groups, same, "left_anti")
    return reduce(DataFrame.union, parts)
