"""What changes over time: the versions of each key, and which of them was valid at an instant (as-of joins).

A change counts from its event time on; one that came late, from the watermark on that was in force
when it arrived: nothing behind the frontier is changed by it. So which version a row at an
instant finds is settled when the watermark passes that instant, and a row joined then, or by a
batch run a year later, finds the same.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakehouse.declare.columns import ARRIVAL, helper, quoted, quoted_column
from lakehouse.transform import arrival_fields
from lakehouse.transform.analysis.plan_tree import analyzed, kind_of, nodes, seq
from lakehouse.transform.analysis.shapes import reads

VALID = ("valid_from", "valid_to")
_EVER = 2**63 - 1  # microseconds: the last instant there is
_ORDER = "_order"
_ORDER_TYPE = "struct<event_time:timestamp,time:timestamp,topic:string,partition:int,offset:bigint"


def changes(rows: DataFrame, event_time: str, *, by_position: bool = False) -> DataFrame:
    """Rows of an ingest table (`event_time`, `_arrival`) as changes: `valid_from`, and `_order`, by
    which the later one is known.

    `by_position`: that is their place in the log of a database, and not their time.
    """
    known = F.col(f"{ARRIVAL}.watermark") + F.expr("interval 1 microsecond")
    if by_position:
        order = F.struct("position")
    else:
        order = F.struct(
            F.col(event_time).alias("event_time"),
            *arrival_fields.places(rows),
        ).cast(_ORDER_TYPE + (",index:int>" if arrival_fields.has_place(rows) else ">"))
    return rows.withColumns({VALID[0]: F.greatest(event_time, known), _ORDER: order}).drop(ARRIVAL)


def versions(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The `changes` of each key that were ever valid, each until the next (`valid_to`, null of the last).

    A change that a later one (by event time) was known before is none, and neither is one of a
    database that is sent again: it has the place of the first. What is left out stays out
    whatever comes, so that the versions there are and the changes that are new give the same as all
    changes together.
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
    """What of a function's result, `rows`, leaves out some changes of a key and not all: by more than the key, or its place.

    The version before such a change is not ended by it. A filter by the keys alone leaves out all changes of a key.
    """
    plan = analyzed(rows)
    found, by_key = [], {a.exprId().id() for a in seq(plan.output()) if a.name() in keys}
    for node in nodes(plan, subqueries=False):  # from the result down to what it reads
        if node.nodeName() == "Project":
            aliases = {
                e.exprId().id(): e.child() for e in seq(node.projectList()) if kind_of(e) == "Alias"
            }
            by_key |= {
                child.exprId().id()
                for number, child in aliases.items()
                if number in by_key and kind_of(child) == "AttributeReference"
            }
        if _drops(node) and not _deciding(node) <= by_key:
            found.append(node.simpleString(100))
    return found


def _drops(node) -> bool:
    """Whether an operator over the changes may leave out some of them."""
    if node.nodeName() == "Join":
        return reads(node) and node.joinType().sql() not in ("LEFT OUTER", "FULL OUTER", "CROSS")
    if node.nodeName() == "Generate":
        return reads(node) and not node.outer()
    return node.nodeName() == "Filter" and reads(node)


def _deciding(node) -> set[int]:
    """The columns of the changes by which it does, by id."""
    read = {
        a.exprId().id() for side in seq(node.children()) if reads(side) for a in seq(side.output())
    }
    asked = {
        a.exprId().id() for each in seq(node.expressions()) for a in seq(each.references().toSeq())
    }
    return read & asked


def changed(there: DataFrame, new: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The versions `there` are, with the `new` changes: computed again of the keys that these touch."""
    touched = versions(of_keys(there, new, keys).drop(VALID[1]).unionByName(new), keys)
    return of_keys(there, new, keys, others=True).unionByName(touched)


def of_keys(
    rows: DataFrame, few: DataFrame, keys: Sequence[str], *, others: bool = False
) -> DataFrame:
    """The `rows` of those keys that the `few` have, or of all `others`."""
    keys_of_few = few.select(*(F.col(quoted(key)).alias(f"_key_{key}") for key in keys))
    same = reduce(
        and_, (F.col(quoted(key)).eqNullSafe(F.col(quoted(f"_key_{key}"))) for key in keys)
    )
    return rows.join(F.broadcast(keys_of_few), same, "left_anti" if others else "left_semi")


def as_of_join(
    rows: DataFrame,
    versioned: DataFrame,
    on: str | Mapping[str, str],
    at: str,
    take: Sequence[str] | Mapping[str, str],
) -> DataFrame:
    """Rows, each with columns of the version that was valid at its instant.

    :param rows: the rows; all of them are in the result.
    :param versioned: a versioned table.
    :param on: the column of both, or of `rows` -> of `versioned`.
    :param at: the column of `rows` that says when.
    :param take: names, or name in the result -> in `versioned`; null where no version was valid, or the
        key was deleted (a column `deleted` says so).
    """
    keys = {on: on} if isinstance(on, str) else dict(on)
    taken = dict(take) if isinstance(take, Mapping) else {name: name for name in take}
    periods = versioned.where(~F.col("deleted")) if "deleted" in versioned.columns else versioned
    key_names = {helper(f"on_{number}"): name for number, name in enumerate(keys.values())}
    own = key_names | {helper(name): name for name in VALID}
    periods = periods.select(
        *(F.col(quoted_column(c, versioned.columns)).alias(n) for n, c in (own | taken).items())
    )
    # looked at for each row and version: an end that is never null is compared in three quarters of
    # the time
    begin, end = map(helper, VALID)
    periods = periods.withColumn(end, F.coalesce(end, F.timestamp_micros(F.lit(_EVER))))
    at, *lefts = (quoted_column(name, rows.columns) for name in (at, *keys))
    valid = (F.col(begin) <= F.col(at)) & (F.col(at) < F.col(end))
    same = (F.col(left) == F.col(right) for left, right in zip(lefts, key_names, strict=True))
    return rows.join(periods, reduce(and_, same, valid), "left").drop(*own)
