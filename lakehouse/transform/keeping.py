"""How a keyed table is kept up to date: by merged sums, by a state that Spark keeps, or by what belongs to what changed."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from lakehouse.declare.table import Table
from lakehouse.storage.session import Session
from lakehouse.transform import plan
from lakehouse.transform.analysis import groups, shapes
from lakehouse.transform.plan import Plan


def group_uses(session: Session, step: Plan) -> groups.Uses:
    """By which columns rows of a keyed table belong to rows of its inputs."""

    return step.once("groups", lambda: groups.uses(_on_marked(session, step), step.table.keys))


def adding(session: Session, step: Plan) -> list[str] | None:
    """The columns of sums and counts over one keyed table, to which what came is added (`shapes.adding`).

    None if the table is another.
    """
    followed = session.catalog.followed_inputs(step.table)
    if step.table.counts_by_time or [table.kind.keeps_latest for table in followed] != [True]:
        return None
    return step.once("adding", lambda: shapes.adding(_on_marked(session, step), step.table.keys))


def is_one_aggregate(session: Session, table: Table) -> bool:
    """Whether Spark can keep the state of a keyed table: one aggregate of all rows of one ingest table.

    A refreshed reference table would change what rows of before are worth. Rows that expire are to be taken out again,
    and rows ahead of the frontier wait.
    """
    followed = session.catalog.followed_inputs(table)
    if table.counts_by_time or any(each.refresh for each in session.catalog.pinned_inputs(table)):
        return False
    if [table.kind.reads_sources for table in followed] != [True]:
        return False
    step = plan.plan_of(session, table, judged=False)
    return step.once(
        "one", lambda: shapes.is_one_aggregation(plan.on_no_rows(session, step), table.keys)
    )


def merging(session: Session, table: Table) -> Mapping[str, str] | None:
    """How the columns of a keyed table are had from rows that are there and those of new input (`shapes.merging`).

    None if that is not enough.
    """
    if not is_one_aggregate(session, table):
        return None
    step = plan.plan_of(session, table, judged=False)
    return step.once("merging", lambda: shapes.merging(plan.on_no_rows(session, step), table.keys))


def key_columns(session: Session, table: Table) -> Sequence[str]:
    """The columns by which rows of a keyed or versioned table are found: its keys, or those of a whole group."""
    if not table.kind.keeps_latest or is_one_aggregate(session, table):
        return table.keys
    return group_uses(session, plan.plan_of(session, table, judged=False)).columns or table.keys


def _on_marked(session: Session, step: Plan) -> DataFrame:
    """What the function makes of no rows, whose columns say which input they are of."""
    marked = {name: shapes.marked(plan.no_rows(session, name), name) for name in step.followed}
    others = {n: plan.no_rows(session, n) for n in step.table.inputs if n not in marked}
    return step.kept(marked, others)
