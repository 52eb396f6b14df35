"""A process function with a lasting state over a range: kept states go in, rows come out, and states on request."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from math import nan
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType, TimestampType

from lakehouse.declare.columns import quoted
from lakehouse.transform.functions.process_state import (
    LAST,
    LIFE,
    NEXT,
    Life,
    Row,
    Rules,
    in_order,
    lived,
)

if TYPE_CHECKING:
    import pyarrow as pa

_AT_ONCE = 256  # parts of the keys
_MADE, _KEPT = "made", "kept"  # the output of a key: rows, and a state


@dataclass
class Run:
    """The run of a range, as a table's process function sees it."""

    end: datetime | None = None  # rows and timers are before it; None: no end
    kept: DataFrame | None = None  # the states with which the range begins
    keep_at: datetime | None = None  # the instant of the states that are wanted, not after `end`
    full: DataFrame | None = None  # in memory, if states are wanted: the rows and the states
    states: DataFrame | None = None


_RUN: ContextVar[Run | None] = ContextVar("run", default=None)


@contextmanager
def over(run: Run) -> Iterator[None]:
    """Applies process functions with a lasting state, inside the block, over that range."""
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)


def part(by: Sequence[str]) -> Column:
    """Returns the part of a key. Many keys go to Python at once: a call for each would cost more than its rows."""
    return F.pmod(F.xxhash64(*by), F.lit(_AT_ONCE))


def by_key(group: "pa.Table", by: Sequence[str]) -> dict[tuple, list[Row]]:
    rows_of: dict[tuple, list[Row]] = {}
    for row in group.to_pylist():
        # NaN is one key, as in Spark; in Python it is not even equal to itself
        key = tuple(nan if (value := row[name]) != value else value for name in by)
        rows_of.setdefault(key, []).append(row)
    return rows_of


def arrow(rows: list[Row], schema: StructType) -> "pa.Table":
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.Table.from_pylist(rows, to_arrow_schema(schema, timezone="UTC"))


def lasting(rows: DataFrame, by: Sequence[str], rules: Rules, output: StructType) -> DataFrame:
    """Returns the output of the function over the run under way (`over`), or over all rows outside one."""
    run = _RUN.get() or Run()
    kept = StructType([rows.schema[name] for name in by])
    kept = kept.add(LAST, TimestampType()).add(NEXT, TimestampType()).add(LIFE, StringType())
    schema = StructType().add(_MADE, output).add(_KEPT, kept)
    keep_at, end = run.keep_at, run.end  # the functions below go to other processes

    def begun(group: "pa.Table") -> "pa.Table":
        return arrow(list(_lived(by_key(group, by), {}, by, rules, keep_at, end)), schema)

    def going_on(group: "pa.Table", states: "pa.Table") -> "pa.Table":
        lives = {key: Life.of(state) for key, [state] in by_key(states, by).items()}
        return arrow(list(_lived(by_key(group, by), lives, by, rules, keep_at, end)), schema)

    untouched = None
    grouped = rows.groupBy(part(by))
    if run.kept is None:
        full = grouped.applyInArrow(begun, schema)
    else:
        touched, untouched = _parted(run.kept, rows, by, end)
        full = grouped.cogroup(touched.groupBy(part(by))).applyInArrow(going_on, schema)
    if keep_at:
        full = run.full = full.persist()
        run.states = full.where(f"{_KEPT} IS NOT NULL").select(f"{_KEPT}.*")
        if untouched is not None:
            alive = untouched.where(F.col(LAST) >= F.lit(keep_at - rules.within))
            run.states = run.states.unionByName(alive)
    return full.where(f"{_MADE} IS NOT NULL").select(f"{_MADE}.*")


def _lived(
    of_key: Mapping[tuple, list[Row]],
    lives: Mapping[tuple, Life],
    by: Sequence[str],
    rules: Rules,
    keep_at: datetime | None,
    end: datetime | None,
) -> Iterator[Row]:
    """Yields the output of each key, and its state at `keep_at` if it is remembered then."""
    for key in dict.fromkeys((*lives, *of_key)):
        life = lives.get(key) or Life()
        rows = in_order(of_key.get(key, ()), rules.at)
        if keep_at:
            first = [row for row in rows if row[rules.at] < keep_at]
            rows = rows[len(first) :]
            for output in lived(rules, life, first, keep_at):
                yield {_MADE: output, _KEPT: None}
            if life.last and keep_at - life.last <= rules.within:
                yield {_MADE: None, _KEPT: dict(zip(by, key, strict=True)) | life.kept()}
        for output in lived(rules, life, rows, end):
            yield {_MADE: output, _KEPT: None}


def _parted(
    kept: DataFrame, rows: DataFrame, by: Sequence[str], end: datetime | None
) -> tuple[DataFrame, DataFrame]:
    """Returns the states of keys with a row or a timer before the end, and the others, which stay unchanged."""
    keys = rows.select(*(F.col(quoted(name)).alias(f"_key_{name}") for name in by)).distinct()
    pairs = (kept[quoted(name)].eqNullSafe(F.col(quoted(f"_key_{name}"))) for name in by)
    same = reduce(and_, pairs)
    states = kept.join(keys.withColumn("_has_row", F.lit(True)), same, "left")
    due = F.col(NEXT) < F.lit(end) if end else F.col(NEXT).isNotNull()
    touched = F.col("_has_row").isNotNull() | F.coalesce(due, F.lit(False))
    columns = [*map(quoted, kept.columns)]
    return states.where(touched).select(columns), states.where(~touched).select(columns)
