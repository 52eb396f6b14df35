"""The ways to keep a keyed table up to date: merged sums, a state that Spark keeps, or changed groups computed again."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from lakehouse.transform.analysis import groups, shapes
from lakehouse.transform.plan import Plan


def group_uses(step: Plan) -> groups.Uses:
    """Returns the columns by which rows of a keyed table belong to rows of its inputs."""
    return step.once("groups", lambda: groups.uses(_on_marked(step), step.table.keys))


def adding(step: Plan) -> list[str] | None:
    """Returns the sums and counts over one keyed table, to which changes are added (`shapes.adding`); None for another table."""
    followed = step.catalog.followed_inputs(step.table)
    if step.table.counts_by_time or [table.kind.keeps_latest for table in followed] != [True]:
        return None
    return step.once("adding", lambda: shapes.adding(_on_marked(step), step.table.keys))


def is_one_aggregate(step: Plan) -> bool:
    """Returns True if Spark can keep the state of a keyed table: one aggregate of all rows of one ingest table.

    A refreshed reference table would change the effect of earlier rows. Expired rows must be removed again, and rows
    ahead of the frontier must wait.
    """
    table, catalog = step.table, step.catalog
    followed = [each.kind.reads_sources for each in catalog.followed_inputs(table)]
    refreshed = any(each.refresh for each in catalog.pinned_inputs(table))
    if table.counts_by_time or refreshed or followed != [True]:
        return False
    return step.once("one", lambda: shapes.is_one_aggregation(step.on_no_rows(), table.keys))


def merging(step: Plan) -> Mapping[str, str] | None:
    """Returns the functions that merge rows of a keyed table with those of new input; None if merging is not enough."""
    if not is_one_aggregate(step):
        return None
    return step.once("merging", lambda: shapes.merging(step.on_no_rows(), step.table.keys))


def key_columns(step: Plan) -> Sequence[str]:
    """Returns the columns by which rows of a keyed or versioned table are found: its keys, or those of a whole group."""
    keys = step.table.keys
    if not step.table.kind.keeps_latest or is_one_aggregate(step):
        return keys
    return group_uses(step).columns or keys


def _on_marked(step: Plan) -> DataFrame:
    """Returns the function's result on no rows, whose columns are marked with their input."""
    marked = {name: shapes.marked(step.no_rows(name), name) for name in step.followed}
    others = {n: step.no_rows(n) for n in step.table.inputs if n not in marked}
    return step.kept(marked, others)
