"""Late rows: a view of them, and the runs that merge them under the policy `update`.

A batch run rewrites the windows concerned (in a row table: the rows), many partitions in one Delta commit,
once they have closed. It does the same after an input was rewritten.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.batch import batch_state, compute
from lakehouse.batch.batch_state import BatchState, Dirt
from lakehouse.declare.columns import ARRIVAL, ORIGIN, PARTITION, WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.ranges import BEGINNING, OPEN_END, PARTITION_LENGTHS, Range, partition_range
from lakehouse.storage.delta import delta_log
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commits import NOTHING, Commit
from lakehouse.storage.session import Session
from lakehouse.transform import lateness, observing, plan, ranges_of
from lakehouse.transform.plan import Plan

_INSTANT = timedelta(microseconds=1)
_TOGETHER = 48  # partitions in one Delta commit, if only windows of them are rewritten


def update(session: Session, table: Table) -> list[Commit]:
    """Rewrites the closed dirty partitions of `table`, many in one Delta commit, and returns a line for each.

    A second run finds nothing to do. A dirty partition that is open stays dirty until it closes.
    """
    state = batch_state.read(session, table)
    closed = [d for d in state.dirty if d.closed]
    if not closed:
        return []
    if table.window and table.window.kind == "session":
        commits = [
            compute.backfill(session, table, span) for span in session_spans(session, state, closed)
        ]
    else:
        entire = (
            {d.partition for d in closed}
            if table.by_neighbours
            else _entire(session, table, closed)
        )
        commits = _updated(session, state, [d for d in closed if d.partition not in entire])
        for units in _lots(
            session, table, _whole(table, [d for d in closed if d.partition in entire])
        ):
            commits += compute.backfill_together(session, table, units)
    return sorted(
        (c for c in commits if c.version != NOTHING), key=lambda commit: commit.span.start
    )


def _whole(table: Table, dirt: list[Dirt]) -> list[Range]:
    return [partition_range(d.partition, table.partition_by) for d in dirt]


def _entire(lakehouse: Lakehouse, table: Table, closed: list[Dirt]) -> set[str]:
    """Returns the partitions to rewrite whole: with quarantined rows or lost files, whose windows are unknown."""
    keys = {d.partition for d in closed}
    aside = {
        file[f"partition.{PARTITION}"]
        for file in delta_log.files(lakehouse.path(table, "quarantine"))
    } & keys
    return (
        aside
        | lakehouse.lost(table, keys).keys()
        | {d.partition for d in closed if d.since is None}
    )


def _lots(lakehouse: Lakehouse, table: Table, units: list[Range]) -> Iterator[list[Range]]:
    """Yields units that follow each other without a gap, no more than are computed at once."""
    inputs = lakehouse.catalog.timed_inputs(table) if units else []
    files = [(t, file) for t in inputs for file in delta_log.files(lakehouse.path(t))]
    for span in ranges.joined(units):
        context = ranges_of.context(span, table)
        rows = sum(
            file["num_records"] or 0 for t, file in files if lakehouse.may_hold(t, file, context)
        )
        inside = [unit for unit in units if span.start <= unit.start < span.end]
        limit = compute.at_once(rows, len(inside))
        yield from (inside[first : first + limit] for first in range(0, len(inside), limit))


def _updated(session: Session, state: BatchState, dirt: list[Dirt]) -> list[Commit]:
    """Rewrites the windows (in a row table: the rows) that late rows missed in these partitions."""
    if not dirt:
        return []
    table, versions = state.table, compute.present(session, state.table)
    whole = _whole(table, dirt)
    # for all partitions at once, so that the input is read once
    span, since = Range(whole[0].start, whole[-1].end), min(d.since for d in dirt if d.since)
    touched = missed(session, table, span, since, versions).persist()
    try:
        commits = []
        for first in range(0, len(dirt), _TOGETHER):
            keys = [d.partition for d in dirt[first : first + _TOGETHER]]
            mine = touched.where(F.col(PARTITION).isin(keys)).drop(PARTITION)
            units = whole[first : first + _TOGETHER]
            commits += compute.rewrite(session, state, units, mine, versions)
        return commits
    finally:
        touched.unpersist()


def missed(
    session: Session,
    table: Table,
    span: Range,
    since: datetime | None,
    versions: Mapping[str, int],
) -> DataFrame:
    """Returns the units that rows missed which were late at the watermark `since` or after, each once.

    It reads the inputs at `versions`. Columns: `_partition`, the unit (`Plan.unit`), and `_from`, `_to`, the
    event time that it covers. The result has all units in `span`, and maybe more. Tables whose rows are
    computed with their neighbours (`Table.by_neighbours`) have no such units.
    """
    step = plan.plan_of(session, table)
    parts = (
        _missed(session, step, t, span, since, versions[t.name])
        for t in session.catalog.timed_inputs(table)
    )
    return reduce(DataFrame.unionByName, parts).distinct()


def _missed(
    session: Session, step: Plan, of: Table, span: Range, since: datetime | None, version: int
) -> DataFrame:
    """Returns the units that late rows of one input missed."""
    table, timed = step.table, step.timed[of.name]
    event_time = timed.event_time
    moment, context = F.col(event_time), ranges_of.context(span, table)
    rows = timed.placed(session.spanning(of, context, version)).where(
        (F.col(ORIGIN) == "stream")
        & lateness.between(moment, context)
        & (F.col(f"{ARRIVAL}.watermark") >= F.lit(since))
    )
    flagged = lateness.flagged(rows.drop(PARTITION), table, event_time)
    place = lateness.instant_of(table.window, event_time)
    covers = (moment, moment + F.expr("interval 1 microsecond"))
    if table.window:
        covers = (F.col(f"{WINDOW}.start"), F.col(f"{WINDOW}.end"))
    columns = {
        PARTITION: lateness.partition_of(place, table.partition_by),
        step.unit: F.col(step.unit),
    }
    columns |= dict(zip(("_from", "_to"), covers, strict=True))
    return lateness.late(flagged).select(*(c.alias(name) for name, c in columns.items()))


def settled(
    session: Session, table: Table, span: Range, waiting: list[Dirt]
) -> Callable[[DataFrame], DataFrame]:
    """Returns a filter that leaves out rows which wait for an update, or for the stream to read their input."""
    whole = [d.partition for d in waiting if d.since is None or table.by_neighbours]
    # a session that a late row joins may end in any later partition
    if table.window and table.window.kind == "session":
        return lambda rows: rows.where(F.col(PARTITION) < min(whole, default="~"))
    if table.by_neighbours:
        return lambda rows: rows.where(~F.col(PARTITION).isin(whole))
    present, last = compute.present(session, table), next(session.commit_log(table).by_stream())
    parts = []
    if since := min((d.since for d in waiting if d.since), default=None):
        # a batch run has merged since then what was missed in other partitions
        waits = F.col(PARTITION).isin([d.partition for d in waiting])
        parts.append(missed(session, table, span, since, present).where(waits))
    if any(version > last.version_read(name) for name, version in present.items()):
        parts.append(missed(session, table, span, last.watermark, present))
    if not parts:
        return lambda rows: rows.where(~F.col(PARTITION).isin(whole))
    unit = plan.plan_of(session, table).unit
    touched = F.broadcast(reduce(DataFrame.unionByName, parts).select(unit).distinct())
    return lambda rows: rows.where(~F.col(PARTITION).isin(whole)).join(touched, unit, "left_anti")


def session_spans(session: Session, state: BatchState, closed: list[Dirt]) -> Iterator[Range]:
    """Yields the ranges to rewrite, each up to the end of the sessions that late rows may join, partitions later.

    While such a session goes on, nothing is rewritten: the stream is still to write it, without the late row.
    """
    table, ahead = state.table, state.ahead
    length = PARTITION_LENGTHS[table.partition_by]
    done = BEGINNING
    for dirt in closed:
        span = partition_range(dirt.partition, table.partition_by)
        if span.start < done:
            continue
        joined = F.col(f"{WINDOW}.start") <= F.lit(dirt.until or span.end)
        following = compute.compute(session, table, Range(span.end, OPEN_END)).judged.where(joined)
        latest = observing.only(following.agg(F.max(f"{WINDOW}.end")))[0]
        end = (
            ranges.floor(latest.astimezone(UTC) - _INSTANT, length) + length if latest else span.end
        )
        if end <= ahead:
            done = end
            yield Range(span.start, end)


def late_rows(session: Session, table: Table) -> DataFrame:
    """Returns the late view: rows of the inputs that came too late for this table, with the window they missed.

    With several inputs, a row has null in the columns of the others.
    """
    if not table.has_late_rows:
        raise RangeError(
            f"table={table.name}: only row and window tables, and keyed tables with ttl or final_rows, have late rows; name one"
        )
    step = plan.plan_of(session, table)
    parts = (_late_rows(session, step, t) for t in session.catalog.timed_inputs(table))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _late_rows(session: Session, step: Plan, of: Table) -> DataFrame:
    timed = step.timed[of.name]
    rows = timed.placed(session.read(of).where(f"{ORIGIN} = 'stream'"))
    return lateness.late(lateness.flagged(rows, step.table, timed.event_time))
