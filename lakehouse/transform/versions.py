"""The versions of each key, and the one that was valid at an instant (as-of joins).

A change counts from its event time on. A late one counts from the watermark that was in force when it
arrived, so it changes nothing behind the frontier. The version that a row at an instant finds is therefore
settled when the watermark passes that instant: a batch run a year later finds the same.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakehouse.declare.columns import ARRIVAL, helper, quoted, quoted_column
from lakehouse.transform import arrival_fields
from lakehouse.transform.analysis.plan_tree import (
    analyzed,
    id_of,
    ids,
    is_column,
    kind_of,
    nodes,
    references,
    seq,
)
from lakehouse.transform.analysis.shapes import reads

VALID = ("valid_from", "valid_to")
_EVER = 2**63 - 1  # microseconds: the last instant there is
_ORDER = "_order"
_ORDER_TYPE = "struct<event_time:timestamp,time:timestamp,topic:string,partition:int,offset:bigint"


def changes(rows: DataFrame, event_time: str, *, by_position: bool = False) -> DataFrame:
    """Returns rows of an ingest table (`event_time`, `_arrival`) as changes: with `valid_from`, and `_order`, which is
    greater for the later one.

    With `by_position` the order is their place in the log of a database, not their time.
    """
    in_force = F.col(f"{ARRIVAL}.watermark") + F.expr("interval 1 microsecond")
    if by_position:
        order = F.struct("position")
    else:
        fields = F.struct(F.col(event_time).alias("event_time"), *arrival_fields.places(rows))
        index = ",index:int" if arrival_fields.has_place(rows) else ""
        order = fields.cast(f"{_ORDER_TYPE}{index}>")
    added = {VALID[0]: F.greatest(event_time, in_force), _ORDER: order}
    return rows.withColumns(added).drop(ARRIVAL)


def versions(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Returns the `changes` of each key that were ever valid, each until the next (`valid_to`, null for the last).

    A change is left out if a later one (by event time) was known before it. So is a change of a database
    that is sent again, which has the place of the first. Changes that are left out stay out whatever
    comes, so the present versions and new changes give the same result as all changes together.
    """
    so_far = Window.partitionBy(*map(quoted, keys)).orderBy(VALID[0], _ORDER)
    before = so_far.rowsBetween(Window.unboundedPreceding, -1)
    newest = (
        changes.withColumn("_newest", F.max(_ORDER).over(before))
        .where(F.col("_newest").isNull() | (F.col(_ORDER) > F.col("_newest")))
        .drop("_newest")
    )
    until = newest.withColumn(VALID[1], F.lead(VALID[0]).over(so_far))
    return until.where(F.col(VALID[1]).isNull() | (F.col(VALID[1]) > F.col(VALID[0])))


def dropping(rows: DataFrame, keys: Sequence[str]) -> list[str]:
    """Returns the operators in the plan of a function's result that leave out some changes of a key, but not all.

    Such a change does not end the version before it. A filter by the keys alone leaves out all changes of a key.
    """
    plan = analyzed(rows)
    operators = []
    by_key = {id_of(a) for a in seq(plan.output()) if a.name() in keys}
    for node in nodes(plan, subqueries=False):  # from the result down to what it reads
        if node.nodeName() == "Project":
            aliases = [e for e in seq(node.projectList()) if kind_of(e) == "Alias"]
            named = [alias.child() for alias in aliases if id_of(alias) in by_key]
            by_key |= {id_of(child) for child in named if is_column(child)}
        if not _drops(node):
            continue
        read = {number for side in seq(node.children()) if reads(side) for number in ids(side)}
        deciding = {id_of(c) for e in seq(node.expressions()) for c in references(e)} & read
        if not deciding <= by_key:
            operators.append(node.simpleString(100))
    return operators


def _drops(node) -> bool:
    """Returns True if an operator over the changes may leave out some of them."""
    if node.nodeName() == "Join":
        return reads(node) and node.joinType().sql() not in ("LEFT OUTER", "FULL OUTER", "CROSS")
    if node.nodeName() == "Generate":
        return reads(node) and not node.outer()
    return node.nodeName() == "Filter" and reads(node)


def changed(present: DataFrame, new: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Returns the `present` versions with the `new` changes: those of the keys that these touch are computed again."""
    touched = versions(of_keys(present, new, keys).drop(VALID[1]).unionByName(new), keys)
    return of_keys(present, new, keys, others=True).unionByName(touched)


def of_keys(
    rows: DataFrame, few: DataFrame, keys: Sequence[str], *, others: bool = False
) -> DataFrame:
    """Returns the `rows` of the keys in `few`, or of all `others`."""
    keys_of_few = few.select(*(F.col(quoted(key)).alias(f"_key_{key}") for key in keys))
    pairs = (F.col(quoted(key)).eqNullSafe(F.col(quoted(f"_key_{key}"))) for key in keys)
    same = reduce(and_, pairs)
    return rows.join(F.broadcast(keys_of_few), same, "left_anti" if others else "left_semi")


def as_of_join(
    rows: DataFrame,
    versioned: DataFrame,
    on: str | Mapping[str, str],
    at: str,
    take: Sequence[str] | Mapping[str, str],
) -> DataFrame:
    """Returns rows, each with columns of the version that was valid at its instant.

    :param rows: the rows; all of them are in the result.
    :param versioned: a versioned table.
    :param on: the column of both, or of `rows` -> of `versioned`.
    :param at: the column of `rows` with the instant.
    :param take: names, or name in the result -> in `versioned`; null if no version was valid, or if the
        key was deleted (by a column `deleted`).
    """
    keys = {on: on} if isinstance(on, str) else dict(on)
    columns_taken = dict(take) if isinstance(take, Mapping) else {name: name for name in take}
    periods = versioned.where(~F.col("deleted")) if "deleted" in versioned.columns else versioned
    key_names = {helper(f"on_{number}"): name for number, name in enumerate(keys.values())}
    own = key_names | {helper(name): name for name in VALID}
    named = (own | columns_taken).items()
    chosen = (F.col(quoted_column(column, versioned.columns)).alias(name) for name, column in named)
    periods = periods.select(*chosen)
    # for each row and version, an end that is never null is compared in three quarters of the time
    begin, end = map(helper, VALID)
    periods = periods.withColumn(end, F.coalesce(end, F.timestamp_micros(F.lit(_EVER))))
    at, *lefts = (quoted_column(name, rows.columns) for name in (at, *keys))
    valid = (F.col(begin) <= F.col(at)) & (F.col(at) < F.col(end))
    same = (F.col(left) == F.col(right) for left, right in zip(lefts, key_names, strict=True))
    return rows.join(periods, reduce(and_, same, valid), "left").drop(*own)
