"""The batch run: the same plan over stored input, for a closed range."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.batch.publish import Computed, publish
from lakehouse.declare.columns import ORIGIN, WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.ranges import PARTITION_LENGTHS, Range
from lakehouse.storage import delta_log, delta_writer
from lakehouse.storage.commit_log import frontier
from lakehouse.storage.commits import NOTHING, Commit
from lakehouse.storage.lake import Lake
from lakehouse.transform import lateness, observing, plan
from lakehouse.transform.plan import Origin, Plan

_EVER = Range(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
# computed at once: kept in memory or on disk, and the streams wait for it to end
_ROWS, _PARTITIONS = (
    5_000_000,
    24,
)
# of event time: more than a micro-batch of the stream brings unless it catches up
_LONG = timedelta(minutes=5)


def closed_until(lake: Lake, table: Table) -> datetime:
    """The frontier of a table that has ranges to compute.

    Raises RangeError for an ingest table, a reference table, or before any commit.
    """
    lake.catalog.check_derived(table)
    ahead = frontier(lake.settings, table)
    if ahead is None and delta_log.files(lake.path(table)):
        raise RangeError(
            f"table={table.name}, commit log={lake.commit_log(table).path}: the table has rows, and its commit "
            "log no line of the "
            "stream, so its frontier is not known; restore the commit log, or start the job of the table"
        )
    if ahead is None:
        raise RangeError(
            f"table={table.name}: nothing is closed before the stream's first commit; start its job"
        )
    return ahead


def first(lake: Lake, table: Table) -> datetime | None:
    """The first event time that the table's input has."""
    driving = lake.catalog.driving(table)
    rows = lake.spanning(driving, _EVER)
    found = observing.only(rows.agg(F.min(_moment(lake, driving))))[0]
    return found and found.astimezone(UTC)


def _moment(lake: Lake, driving: Table) -> Column:
    """The instant that places a stored row of an input in time."""
    return lateness.instant_of(driving.window, lake.catalog.event_time(driving))


def behind(lake: Lake, table: Table, ahead: datetime) -> Range | None:
    """From the partition of the first row of the table's input up to an instant.

    None if that is no range.
    """
    found = first(lake, table)
    start = ranges.floor(found, PARTITION_LENGTHS[table.partition_by]) if found else ahead
    return Range(start, ahead) if start < ahead else None


def check_range(lake: Lake, table: Table, span: Range, *, whole_partitions: bool) -> datetime:
    """The frontier, if `span` may be computed.

    Raises RangeError as `closed_until`, and for a range that crosses it.
    """
    ahead = closed_until(lake, table)
    if span.end > ahead:
        raise RangeError(
            f"table={table.name}, range end={ranges.text(span.end)}: it crosses the frontier {ranges.text(ahead)}; "
            "rows ahead of the frontier belong to the stream; end the range at or before it"
        )
    if whole_partitions and not span.aligned(table.partition_by):
        raise RangeError(
            f"table={table.name}, range={span}: a range is replaced in whole {table.partition_by}s; move both ends "
            f"to a full {table.partition_by}"
        )
    return ahead


def compute(
    lake: Lake,
    table: Table,
    span: Range,
    version: int | None = None,
    touched: DataFrame | None = None,
    references: Mapping[str, int] | None = None,
) -> Computed:
    """The rows of `span` by the same plan as the stream, over the stored input and the pinned inputs.

    The span is widened by the context that the declared window needs, and cut back after the
    function. The input is read at `version`, the present one by default, and reference tables at
    theirs, by default as the stream pinned them. With `touched` (`late_merge.missed`) only that is
    computed.
    """
    driving = lake.catalog.driving(table)
    version = delta_writer.version(lake.path(driving)) if version is None else version
    versions = pinned(lake, table) | dict(references or {})
    # no later version of a versioned table changes what was valid behind the frontier
    kept = {
        versioned.name: delta_writer.version(lake.path(versioned))
        for versioned in lake.catalog.versioned_inputs(table)
    }
    others = lake.references(versions | kept)
    covers = None if touched is None else _covers(touched) or [span]
    read = partial(lake.spanning, driving, version=version, within=covers)
    context = Range(covers[0].start, covers[-1].end) if covers else None
    step = plan.plan_of(lake, table)
    judged = _computed(lake, step, span, read, others, "batch", touched, context)
    inputs = {"tables": {driving.name: version}, "references": versions}
    return Computed(judged, inputs | ({"versioned tables": kept} if kept else {}))


def preview(lake: Lake, step: Plan, span: Range, references: Mapping[str, DataFrame]) -> DataFrame:
    """The judged rows of `span`, open or not, as the stream would write them: late rows stay out, whatever the policy."""
    return _computed(
        lake,
        step,
        span,
        partial(lake.spanning, lake.catalog.table(step.driving)),
        references,
        "early",
    )


def closing(lake: Lake, step: Plan, span: Range, references: Mapping[str, DataFrame]) -> DataFrame:
    """The judged rows of a span that has just closed, for a stream that computes each range as it closes."""
    driving = lake.catalog.table(step.driving)
    return _computed(
        lake,
        step,
        span,
        lambda of: lake.spanning(driving, of).where(f"{ORIGIN} = 'stream'"),
        references,
        "stream",
    )


def _computed(
    lake: Lake,
    step: Plan,
    span: Range,
    read: Callable[[Range], DataFrame],
    references: Mapping[str, DataFrame],
    origin: Origin,
    touched: DataFrame | None = None,
    context: Range | None = None,
) -> DataFrame:
    """The judged rows of `span`; `read` gives the input's of a range, and maybe more.

    `context`: what `touched` covers.
    """
    table, moment = step.table, _moment(lake, lake.catalog.table(step.driving))
    # to choose files and pages by pays for code of its own if there may be many
    chosen = origin == "batch" or span.end - span.start > _LONG
    between = lateness.between if chosen else lateness.between_passing
    within = between(lateness.instant_of(table.window, step.event_time), span)

    def rows(of: Range) -> DataFrame:
        return read(of).where(between(moment, of))

    def computed(context: Range) -> DataFrame:
        others = (
            rows(ranges.widened(context, table.deduplicate.within)) if table.deduplicate else None
        )
        judged = step.derived(rows(context), references, origin, None, touched, others, span.end)
        # the observation stands between the cut and the function: a filter must not move below a
        # stateful operator
        return judged.observe(f"whole_{table.name}", F.count(F.lit(1)).alias("rows")).where(within)

    context = context or lateness.context(span, table)
    if table.window and table.window.kind == "session":
        first = read(_EVER).agg(F.min(moment))
        context = _holding_whole_sessions(context, table.window.size, first, computed)
    return computed(context)


def _covers(touched: DataFrame) -> list[Range]:
    """The event time that `touched` covers, hour by hour: files between its hours are not read."""
    hours = touched.groupBy(F.date_trunc("hour", "_from").alias("hour"))
    found = hours.agg(F.min("_from").alias("start"), F.max("_to").alias("end")).collect()
    spans = (Range(each["start"].astimezone(UTC), each["end"].astimezone(UTC)) for each in found)
    return ranges.joined(sorted(spans, key=lambda each: each.start))


def at_once(rows: int, partitions: int) -> int:
    """How many of the partitions, with so many rows of input, to compute at once."""
    return min(_PARTITIONS, max(1, _ROWS * partitions // max(rows, 1)))


def _holding_whole_sessions(
    context: Range, gap: timedelta, first: DataFrame, computed: Callable[[Range], DataFrame]
) -> Range:
    """The context widened, by twice as much each time, until none of the sessions computed from it may begin before it."""
    begins, more = observing.only(first)[0], max(4 * gap, timedelta(hours=1))
    while begins and context.start > begins.astimezone(UTC):
        earliest = observing.only(computed(context).agg(F.min(f"{WINDOW}.start")))[0]
        if earliest is None or earliest.astimezone(UTC) >= context.start + gap:
            break
        context, more = Range(context.start - more, context.end), 2 * more
    return context


def pinned(lake: Lake, table: Table) -> dict[str, int]:
    """The versions of pinned inputs that the stream read; the present ones if it has not run."""
    last = next(lake.commit_log(table).by_stream(), None)
    known = dict(last.inputs["references"]) if last else {}
    return {
        t.name: known.get(t.name, delta_writer.version(lake.path(t)))
        for t in lake.catalog.pinned_inputs(table)
    }


def backfill(lake: Lake, table: Table, span: Range) -> Commit:
    """Makes `span` (whole partitions, behind the frontier) of `table` hold its batch run, in one Delta commit.

    Rows that are these already stay, and the commit has the version NOTHING. Raises RangeError
    before anything is computed.
    """
    started = time.monotonic()
    check_range(lake, table, span, whole_partitions=True)
    [commit] = publish(lake, table, compute(lake, table, span), [span], started)
    return commit


def backfill_together(lake: Lake, table: Table, units: Sequence[Range]) -> list[Commit]:
    """As `backfill` of each of the units, which follow each other without a gap: computed at once, one Delta commit for all."""
    started, span = time.monotonic(), Range(units[0].start, units[-1].end)
    check_range(lake, table, span, whole_partitions=True)
    return list(publish(lake, table, compute(lake, table, span), units, started, together=True))


def rewrite(
    lake: Lake, table: Table, units: Sequence[Range], touched: DataFrame, version: int
) -> list[Commit]:
    """As `backfill_together`, of what is `touched` (`late_merge.missed` at that version of the input) alone; other rows stay.

    There may be gaps between the units, of which nothing is read. Where nothing is touched nothing
    is computed.
    """
    started, span = time.monotonic(), Range(units[0].start, units[-1].end)
    check_range(lake, table, span, whole_partitions=True)
    if touched.isEmpty():
        commits = [_looked_at(lake, table, unit, version) for unit in units]
        for commit in commits:
            lake.commit_log(table).append(commit)
        return commits
    computed = compute(lake, table, span, version, touched)
    partitions = {p for unit in units for p in unit.partitions(table.partition_by)}
    there = lake.partitions(table, partitions, delta_writer.version(lake.path(table)))
    unit = plan.plan_of(lake, table, judged=False).unit
    untouched = there.join(F.broadcast(touched.select(unit)), unit, "left_anti")
    return list(publish(lake, table, computed, units, started, untouched=untouched, together=True))


def _looked_at(lake: Lake, table: Table, unit: Range, version: int) -> Commit:
    """The line of a unit in which nothing was to be rewritten."""
    return Commit(
        table=table.name,
        role="batch",
        generation=0,
        batch=0,
        version=NOTHING,
        at=datetime.now(UTC),
        code_version=table.code_version,
        inputs={"tables": {lake.catalog.driving(table).name: version}},
        start=unit.start,
        end=unit.end,
    )
