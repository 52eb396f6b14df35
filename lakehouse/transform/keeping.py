"""The ways to keep a keyed table up to date: merged sums, a state that Spark keeps, or changed groups computed again."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from lakehouse.declare.table import Table
from lakehouse.storage.session import Session
from lakehouse.transform import plan
from lakehouse.transform.analysis import groups, shapes
from lakehouse.transform.plan import Plan


def group_uses(session: Session, step: Plan) -> groups.Uses:
    """Returns the columns by which rows of a keyed table belong to rows of its inputs."""

    return step.once("groups", lambda: groups.uses(_on_marked(session, step), step.table.keys))


def adding(session: Session, step: Plan) -> list[str] | None:
    """Returns the sums and counts over one keyed table, to which changes are added (`shapes.adding`); None for another table."""
    followed = session.catalog.followed_inputs(step.table)
    if step.table.counts_by_time or [table.kind.keeps_latest for table in followed] != [True]:
        return None
    return step.once("adding", lambda: shapes.adding(_on_marked(session, step), step.table.keys))


def is_one_aggregate(session: Session, table: Table) -> bool:
    """Returns True if Spark can keep the state of a keyed table: one aggregate of all rows of one ingest table.

    A refreshed reference table would change the effect of earlier rows. Expired rows must be removed again, and rows
    ahead of the frontier must wait.
    """
    followed = session.catalog.followed_inputs(table)
    if table.counts_by_time or any(t.refresh for t in session.catalog.pinned_inputs(table)):
        return False
    if [table.kind.reads_sources for table in followed] != [True]:
        return False
    step = plan.plan_of(session, table, judged=False)
    return step.once(
        "one", lambda: shapes.is_one_aggregation(plan.on_no_rows(session, step), table.keys)
    )


def merging(session: Session, table: Table) -> Mapping[str, str] | None:
    """Returns the functions that merge present rows of a keyed table with those of new input (`shapes.merging`).

    None if merging is not enough.
    """
    if not is_one_aggregate(session, table):
        return None
    step = plan.plan_of(session, table, judged=False)
    return step.once("merging", lambda: shapes.merging(plan.on_no_rows(session, step), table.keys))


def key_columns(session: Session, table: Table) -> Sequence[str]:
    """Returns the columns by which rows of a keyed or versioned table are found: its keys, or those of a whole group."""
    if not table.kind.keeps_latest or is_one_aggregate(session, table):
        return table.keys
    return group_uses(session, plan.plan_of(session, table, judged=False)).columns or table.keys


def _on_marked(session: Session, step: Plan) -> DataFrame:
    """Returns the function's result on no rows, whose columns are marked with their input."""
    marked = {name: shapes.marked(plan.no_rows(session, name), name) for name in step.followed}
    others = {n: plan.no_rows(session, n) for n in step.table.inputs if n not in marked}
    return step.kept(marked, others)
