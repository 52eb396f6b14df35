"""Late rows under the policy `update`: the partitions that they made dirty, and the runs that merge them.

The stream only appends and leaves late rows out, under every policy. Its commit log records what they
missed. A batch run merges them: it rewrites the windows concerned (in a row table: the rows), many
partitions in one Delta commit, once they have closed. It does the same after an input was rewritten.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.batch import compute
from lakehouse.declare.columns import ARRIVAL, ORIGIN, PARTITION, WINDOW
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING, OPEN_END, PARTITION_LENGTHS, Range, partition_range
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.keyed import lookup_answers
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog, frontier
from lakehouse.storage.log.commits import NOTHING, Commit
from lakehouse.storage.session import Session
from lakehouse.transform import lateness, observing, plan, ranges_of
from lakehouse.transform.plan import Plan

_INSTANT = timedelta(microseconds=1)
_TOGETHER = 48  # partitions in one Delta commit, if only windows of them are rewritten


@dataclass(frozen=True, slots=True)
class Dirt:
    """The changes that a partition does not show yet: late rows that arrived at the watermark `since` or after.

    Without `since`, the whole partition is outdated. `until` is the latest instant that a late row missed, here
    or in a later partition.
    """

    partition: str
    closed: bool
    since: datetime | None = None
    until: datetime | None = None


def dirty(lakehouse: Lakehouse, table: Table) -> list[Dirt]:
    """Returns the partitions of `table` that may be dirty, in order; none under the other policies.

    It reads commit logs alone. A batch run of a partition covers what its version of the input held.
    """
    if table.late != "update":
        return []
    inputs = [t.name for t in lakehouse.catalog.timed_inputs(table)]
    commit_log = list(lakehouse.commit_log(table).rewriting())
    covered = _covered(table, commit_log)
    ahead = frontier(lakehouse.settings, table) or BEGINNING
    by_partition: dict[str, Dirt] = {}
    for commit in (c for c in commit_log if c.role == "stream" and c.late_from and c.late_to):
        span = _missing(table, commit)
        assert commit.watermark and commit.late_to  # without a watermark no row is late
        read = {name: commit.version_read(name) for name in inputs}
        for partition in _uncovered(span, table, covered, read):
            earlier = by_partition.get(partition) or Dirt(
                partition, False, commit.watermark, commit.late_to
            )
            since = min(earlier.since or commit.watermark, commit.watermark)
            until = max(earlier.until or commit.late_to, commit.late_to)
            by_partition[partition] = Dirt(
                partition, partition_range(partition, table.partition_by).end <= ahead, since, until
            )
    for partition in outdated(lakehouse, table):
        by_partition[partition] = Dirt(
            partition, partition_range(partition, table.partition_by).end <= ahead
        )
    return [by_partition[p] for p in sorted(by_partition)]


def outdated(lakehouse: Lakehouse, table: Table) -> list[str]:
    """Returns the partitions, in order, that do not show yet what a batch run changed in an input or asked again.

    They are outdated under every policy.
    """
    covered = _covered(table, lakehouse.commit_log(table).rewriting())
    partitions: set[str] = set()
    for changed in lakehouse.catalog.timed_inputs(table):
        for rewrite in (
            c
            for c in lakehouse.commit_log(changed).rewriting()
            if c.role == "batch" and c.version != NOTHING
        ):
            until = _followed(lakehouse.settings, table, changed, rewrite) if table.ttl else None
            touched = ranges_of.reached(table, rewrite.span, until)
            partitions.update(_uncovered(touched, table, covered, {changed.name: rewrite.version}))
    if table.lookup:
        partitions.update(lookup_answers.asked_again(lakehouse.settings, table))
    return sorted(partitions)


def _followed(settings: Settings, table: Table, changed: Table, rewrite: Commit) -> datetime:
    """Returns the instant up to which the stream went on from states made before the rewrite."""
    steps = CommitLog(settings, table).by_stream()
    before = (c for c in steps if c.version_read(changed.name) < rewrite.version)
    return next((c.frontier for c in before if c.frontier), BEGINNING)


def _covered(table: Table, commit_log: Iterable[Commit]) -> dict[str, dict[str, int]]:
    """Returns, by partition, the versions of the inputs that batch runs have looked at for it."""
    covered: dict[str, dict[str, int]] = {}
    for run in (c for c in commit_log if c.role == "batch"):
        for partition in run.span.partitions(table.partition_by):
            versions = covered.setdefault(partition, {})
            for name, version in run.inputs["tables"].items():
                versions[name] = max(versions.get(name, -1), version)
    return covered


def _missing(table: Table, commit: Commit) -> Range:
    """Returns the span that the commit's late rows may change. The end of a session is found when it is computed."""
    assert commit.late_from and commit.late_to
    session = table.window if table.window and table.window.kind == "session" else None
    span = Range(commit.late_from, commit.late_to + (session.size if session else _INSTANT))
    return ranges_of.reached(table, span) if table.context else span


def _uncovered(
    span: Range, table: Table, covered: dict[str, dict[str, int]], versions: Mapping[str, int]
) -> Iterator[str]:
    """Yields the partitions for which no batch run has looked at these versions of the inputs."""
    return (
        p
        for p in span.partitions(table.partition_by)
        if any(covered.get(p, {}).get(name, -1) < version for name, version in versions.items())
    )


def update(session: Session, table: Table) -> list[Commit]:
    """Rewrites the closed dirty partitions of `table`, many in one Delta commit, and returns a line for each.

    A second run finds nothing to do. A dirty partition that is open stays dirty until it closes.
    """
    closed = [d for d in dirty(session, table) if d.closed]
    if not closed:
        return []
    if table.window and table.window.kind == "session":
        commits = [
            compute.backfill(session, table, span) for span in session_spans(session, table, closed)
        ]
    else:
        entire = (
            {d.partition for d in closed}
            if table.by_neighbours
            else _entire(session, table, closed)
        )
        commits = _updated(session, table, [d for d in closed if d.partition not in entire])
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


def _updated(session: Session, table: Table, dirt: list[Dirt]) -> list[Commit]:
    """Rewrites the windows (in a row table: the rows) that late rows missed in these partitions."""
    if not dirt:
        return []
    versions = compute.present(session, table)
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
            commits += compute.rewrite(session, table, units, mine, versions)
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


def session_spans(session: Session, table: Table, closed: list[Dirt]) -> Iterator[Range]:
    """Yields the ranges to rewrite, each up to the end of the sessions that late rows may join, partitions later.

    While such a session goes on, nothing is rewritten: the stream is still to write it, without the late row.
    """
    ahead = frontier(session.settings, table) or BEGINNING
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
