"""The batch run: the same plan over stored input, for a closed range."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.batch import kept_states, lookups, refreshed
from lakehouse.batch.kept_states import Beginning, States
from lakehouse.batch.publish import Computed, publish
from lakehouse.declare.columns import ORIGIN, WINDOW
from lakehouse.declare.lookups import Ask
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.ranges import PARTITION_LENGTHS, Range
from lakehouse.storage.delta import delta_log, delta_writer
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.log.commits import NOTHING, Commit
from lakehouse.storage.session import Session
from lakehouse.transform import counting, lateness, observing, plan, ranges_of
from lakehouse.transform.function_inputs import Met
from lakehouse.transform.functions import process_ttl
from lakehouse.transform.lookups import Answers
from lakehouse.transform.plan import Origin, Plan

# computed at once: kept in memory or on disk, and the streams wait for it to end
_ROWS, _PARTITIONS = 5_000_000, 24
# of event time: more than a micro-batch of the stream brings unless it catches up
_LONG = timedelta(minutes=5)


def closed_until(lakehouse: Lakehouse, table: Table) -> datetime:
    """The frontier of a table that has ranges to compute.

    Raises RangeError for an ingest table, a reference table, or before any commit.
    """
    lakehouse.catalog.check_derived(table)
    ahead = frontier(lakehouse.settings, table)
    if ahead is None and table.kind.is_report:
        raise RangeError(
            f"table={table.name}, inputs={', '.join(t.name for t in table.closes_with)}: a report is computed of partitions that "
            "all of these have closed, and not all have a frontier yet; start their jobs"
        )
    if ahead is None and delta_log.files(lakehouse.path(table)):
        raise RangeError(
            f"table={table.name}, commit log={lakehouse.commit_log(table).path}: the table has rows, and its commit "
            "log no line of the stream, so its frontier is not known; restore the commit log, or start the job of the table"
        )
    if ahead is None or ahead == ranges.BEGINNING:
        nothing = "nothing is closed before the stream's first rows; start its job"
        raise RangeError(f"table={table.name}: {nothing}")
    return ahead


def first(session: Session, table: Table, at: Mapping[str, int] | None = None) -> datetime | None:
    """The first event time that the table's inputs have, now or `at` their versions, to a millisecond."""
    inputs = session.catalog.timed_inputs(table)
    instants = (_first(session, each, (at or {}).get(each.name)) for each in inputs)
    return min(filter(None, instants), default=None)


def _first(session: Session, of: Table, version: int | None) -> datetime | None:
    """As the statistics of its files say; read only if one has none, as files of other writers may."""
    least = session.least(of, version)
    if None not in least:
        return min(filter(None, least), default=None)
    rows = session.spanning(of, counting.EVER, version)
    earliest = observing.only(rows.agg(F.min(_moment(session, of))))[0]
    return earliest and earliest.astimezone(UTC)


def _moment(lakehouse: Lakehouse, driving: Table) -> Column:
    """The instant that places a stored row of an input in time."""
    return lateness.instant_of(driving.window, lakehouse.catalog.event_time(driving))


def behind(session: Session, table: Table, ahead: datetime) -> Range | None:
    """From the partition of the first row of the table's input up to an instant.

    None if that is no range.
    """
    earliest = first(session, table)
    start = ranges.floor(earliest, PARTITION_LENGTHS[table.partition_by]) if earliest else ahead
    return Range(start, ahead) if start < ahead else None


def check_range(
    lakehouse: Lakehouse, table: Table, span: Range, *, whole_partitions: bool
) -> datetime:
    """The frontier, if `span` may be computed.

    Raises RangeError as `closed_until`, and for a range that crosses it.
    """
    ahead = closed_until(lakehouse, table)
    if span.end > ahead and table.kind.is_report:
        raise RangeError(
            f"table={table.name}, range end={ranges.text(span.end)}: its inputs are complete up to {ranges.text(ahead)}, and a "
            "report is of closed partitions; end the range at or before that"
        )
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
    session: Session,
    table: Table,
    span: Range,
    versions: Mapping[str, int] | None = None,
    touched: DataFrame | None = None,
    references: Mapping[str, int] | None = None,
    *,
    states: States = "",
    ask: Ask | None = None,
) -> Computed:
    """The rows of `span` by the same plan as the stream, over the stored input and the pinned inputs.

    The span is widened by the context that the declared window needs, and cut back after the
    function. The inputs with event time are read at their `versions`, the present ones by default,
    and reference tables at theirs, by default as the stream pinned them. With `touched`
    (`late_merge.missed`) only that is computed. `states`: what is done with those of a process function
    (`kept_states`). A lookup's answers are the recorded ones; `ask` has rows without one asked for
    first, "failed" and "all" also those again. Raises LookupFailed.
    """
    at = present(session, table) | dict(versions or {})
    used = pinned(session, table) | dict(references or {})
    # no later version of a versioned table changes what was valid behind the frontier
    kept = {
        versioned.name: delta_writer.version(session.path(versioned))
        for versioned in session.catalog.versioned_inputs(table)
    }
    others = session.references(used | kept)
    covers = None if touched is None else observing.covers(touched) or [span]

    def read(of: Table, span: Range) -> DataFrame:
        return session.spanning(of, span, at[of.name], covers)

    context = Range(covers[0].start, covers[-1].end) if covers else None
    step, begun = plan.plan_of(session, table), None
    if table.ttl:
        begun = kept_states.batch_begins(session, table, span, at, states)
    looked_up = partial(lookups.of_range, session, step, ask) if table.lookup else None
    met = _met(session, table, span, read)
    judged = _computed(
        session, step, span, read, others, "batch", touched, context, begun, looked_up, met, at
    )
    inputs: dict[str, dict[str, Any]] = {"tables": at, "references": used, **refreshed.seen(met)}
    return Computed(judged, inputs | ({"versioned tables": kept} if kept else {}), begun)


def present(lakehouse: Lakehouse, table: Table) -> dict[str, int]:
    """The versions that the table's inputs with event time have now."""
    inputs = lakehouse.catalog.timed_inputs(table)
    return {each.name: delta_writer.version(lakehouse.path(each)) for each in inputs}


def questions(session: Session, table: Table, span: Range) -> DataFrame:
    """The rows of a range that a batch run has the table's lookup asked for (`Plan.questions`)."""
    driving = session.catalog.driving(table)
    rows = session.spanning(driving, span).where(lateness.between(_moment(session, driving), span))
    return plan.plan_of(session, table).questions(rows, "batch")


def preview(
    session: Session, step: Plan, span: Range, references: Mapping[str, DataFrame]
) -> DataFrame:
    """The judged rows of `span`, open or not, as the stream would write them: late rows stay out, whatever the policy."""
    return _computed(session, step, span, session.spanning, references, "early")


def closing(
    session: Session, step: Plan, span: Range, references: Mapping[str, DataFrame]
) -> Computed:
    """The rows of a span that has just closed, for a stream that computes each range as it closes.

    Of what lies before it a state is made of what the inputs hold now, as a batch run would.
    """
    table = step.table
    at = present(session, table) if table.ttl else {}
    begun = kept_states.stream_begins(session, table, span, at) if at else None

    def read(of: Table, context: Range) -> DataFrame:
        by_stream = F.col(ORIGIN) == "stream"
        before = _moment(session, of) < F.lit(span.start) if begun else F.lit(False)
        return session.spanning(of, context, at.get(of.name)).where(by_stream | before)

    met = _met(session, table, span, read)
    judged = _computed(session, step, span, read, references, "stream", begun=begun, met=met)
    return Computed(judged, refreshed.seen(met), begun)


def _met(
    session: Session, table: Table, span: Range, read: Callable[[Table, Range], DataFrame]
) -> list[Met]:
    driving = session.catalog.driving(table)

    def rows() -> DataFrame:
        return read(driving, span).where(lateness.between(_moment(session, driving), span))

    return refreshed.met(session, table, rows)


def _computed(
    session: Session,
    step: Plan,
    span: Range,
    read: Callable[[Table, Range], DataFrame],
    references: Mapping[str, DataFrame],
    origin: Origin,
    touched: DataFrame | None = None,
    context: Range | None = None,
    begun: Beginning | None = None,
    looked_up: Callable[[DataFrame, Range, DataFrame | None], Answers] | None = None,
    met: Sequence[Met] = (),
    at: Mapping[str, int] | None = None,
) -> DataFrame:
    """The judged rows of `span`; `read` gives an input's of a range, and maybe more.

    `context`: what `touched` covers. `begun`: with which states a process function begins. `at`: versions of the inputs.
    """
    table, (driving, *others) = step.table, session.catalog.timed_inputs(step.table)
    if table.kind.is_report:
        return _reported(session, step, span, read, references)
    # to choose files and pages by pays for code of its own if there may be many
    chosen = origin == "batch" or span.end - span.start > _LONG
    between = lateness.between if chosen else lateness.between_passing
    within = between(lateness.instant_of(table.window, step.event_time), span)

    def rows(of: Table, span: Range) -> DataFrame:
        return read(of, span).where(between(_moment(session, of), span))

    def computed(context: Range) -> DataFrame:
        among = (
            rows(driving, ranges.widened(context, table.deduplicate.within))
            if table.deduplicate
            else None
        )
        beside = {each.name: rows(each, context) for each in others}
        taken = rows(driving, context)
        answers = looked_up(taken, context, touched) if looked_up else None
        judged = step.derived(
            taken, references, origin, None, touched, among, span.end, beside, answers, met
        )
        # the observation stands between the cut and the function: a filter must not move below a
        # stateful operator
        return judged.observe(f"whole_{table.name}", F.count(F.lit(1)).alias("rows")).where(within)

    context = context or ranges_of.context(span, table)
    if begun:
        with process_ttl.over(begun.run):
            return computed(Range(begun.start, span.end))
    if table.window and table.window.kind == "session":
        begins = first(session, table, at)
        context = _holding_whole_sessions(context, table.window.size, begins, computed)
    return computed(context)


def _reported(
    lakehouse: Lakehouse,
    step: Plan,
    span: Range,
    read: Callable[[Table, Range], DataFrame],
    references: Mapping[str, DataFrame],
) -> DataFrame:
    """The judged rows of the partitions of a report that end in `span`, each computed by itself."""
    table, timed = step.table, lakehouse.catalog.timed_inputs(step.table)

    def computed(key: str) -> DataFrame:
        whole = ranges.partition_range(key, table.partition_by)
        rows = {
            each.name: read(each, whole).where(lateness.between(_moment(lakehouse, each), whole))
            for each in timed
        }
        return step.report({**references, **rows}, whole)

    parts = map(computed, span.partitions(table.partition_by))
    return reduce(DataFrame.unionByName, parts).where(
        lateness.between(lateness.instant_of_window(), span)
    )


def at_once(rows: int, partitions: int) -> int:
    """How many of the partitions, with so many rows of input, to compute at once."""
    return min(_PARTITIONS, max(1, _ROWS * partitions // max(rows, 1)))


def _holding_whole_sessions(
    context: Range, gap: timedelta, begins: datetime | None, computed: Callable[[Range], DataFrame]
) -> Range:
    """The context widened, by twice as much each time, until none of the sessions computed from it may begin before it."""
    more = max(4 * gap, timedelta(hours=1))
    while begins and context.start > begins:
        earliest = observing.only(computed(context).agg(F.min(f"{WINDOW}.start")))[0]
        if earliest is None or earliest.astimezone(UTC) >= context.start + gap:
            break
        context, more = Range(context.start - more, context.end), 2 * more
    return context


def pinned(lakehouse: Lakehouse, table: Table) -> dict[str, int]:
    """The versions of pinned inputs that the stream read; the present ones if it has not run."""
    last = next(lakehouse.commit_log(table).by_stream(), None)
    read = dict(last.inputs["references"]) if last else {}
    return {
        t.name: read.get(t.name, delta_writer.version(lakehouse.path(t)))
        for t in lakehouse.catalog.pinned_inputs(table)
    }


def backfill(session: Session, table: Table, span: Range, ask: Ask = "missing") -> Commit:
    """Makes `span` (whole partitions, behind the frontier) of `table` hold its batch run, in one Delta commit.

    Rows that are these already stay, and the commit has the version NOTHING. A lookup is asked for
    rows without a recorded answer, or again (`compute`). Raises RangeError before anything is computed.
    """
    started = time.monotonic()
    check_range(session, table, span, whole_partitions=True)
    [commit] = published(session, table, [span], started, ask=ask)
    return commit


def backfill_together(session: Session, table: Table, units: Sequence[Range]) -> list[Commit]:
    """As `backfill` of each of the units, which follow each other without a gap: computed at once, one Delta commit for all."""
    started, span = time.monotonic(), Range(units[0].start, units[-1].end)
    check_range(session, table, span, whole_partitions=True)
    return list(published(session, table, units, started, together=True))


def published(
    session: Session,
    table: Table,
    units: Sequence[Range],
    started: float,
    ask: Ask = "missing",
    **how: Any,
) -> Iterator[Commit]:
    """Computes the units, which follow each other without a gap, at once, and publishes them."""
    span = Range(units[0].start, units[-1].end)
    computed = compute(session, table, span, states="keep", ask=ask)
    with kept_states.keeping(session, computed.begun):
        yield from publish(session, table, computed, units, started, **how)


def rewrite(
    session: Session,
    table: Table,
    units: Sequence[Range],
    touched: DataFrame,
    versions: Mapping[str, int],
) -> list[Commit]:
    """As `backfill_together`, of what is `touched` (`late_merge.missed` at these versions of the inputs); other rows stay.

    There may be gaps between the units, of which nothing is read. Where nothing is touched nothing
    is computed.
    """
    started, span = time.monotonic(), Range(units[0].start, units[-1].end)
    check_range(session, table, span, whole_partitions=True)
    if touched.isEmpty():
        commits = [_looked_at(table, unit, versions) for unit in units]
        for commit in commits:
            session.commit_log(table).append(commit)
        return commits
    computed = compute(session, table, span, versions, touched, ask="missing")
    partitions = {p for unit in units for p in unit.partitions(table.partition_by)}
    stored = session.partitions(table, partitions, delta_writer.version(session.path(table)))
    unit = plan.plan_of(session, table, judged=False).unit
    untouched = stored.join(F.broadcast(touched.select(unit)), unit, "left_anti")
    return list(
        publish(session, table, computed, units, started, untouched=untouched, together=True)
    )


def _looked_at(table: Table, unit: Range, versions: Mapping[str, int]) -> Commit:
    """The line of a unit in which nothing was to be rewritten."""
    return Commit(
        table=table.name,
        role="batch",
        generation=0,
        batch=0,
        version=NOTHING,
        at=datetime.now(UTC),
        code_version=table.code_version,
        inputs={"tables": dict(versions)},
        start=unit.start,
        end=unit.end,
    )
