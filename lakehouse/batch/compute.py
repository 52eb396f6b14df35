"""The batch run: the same plan over stored input, for a closed range."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.batch import kept_states, lookups, refreshed
from lakehouse.batch.batch_state import BatchState, check_range, closed_until
from lakehouse.batch.kept_states import Beginning, States
from lakehouse.batch.publish import Computed, Publication, publish
from lakehouse.declare.columns import ORIGIN, WINDOW
from lakehouse.declare.lookups import Ask
from lakehouse.declare.table import Table
from lakehouse.ranges import PARTITION_LENGTHS, Range
from lakehouse.runtime.prepared_plans import Moment
from lakehouse.storage.delta import delta_writer
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commits import Commit, unwritten
from lakehouse.storage.session import Session
from lakehouse.transform import counting, lateness, observing, plan, ranges_of
from lakehouse.transform.function_inputs import Inputs, VersionsSeen
from lakehouse.transform.functions import process_ttl
from lakehouse.transform.lookups import Answers
from lakehouse.transform.plan import Origin, Plan

# the most that is computed at once: it is kept in memory or on disk, and streams wait for it
_ROWS, _PARTITIONS = 5_000_000, 24
# more event time than a micro-batch of the stream brings unless it catches up
_LONG = timedelta(minutes=5)


def first(session: Session, table: Table, at: Mapping[str, int] | None = None) -> datetime | None:
    """Returns the first event time in the table's inputs, now or `at` their versions, to a millisecond."""
    inputs = session.catalog.timed_inputs(table)
    instants = (_first(session, i, (at or {}).get(i.name)) for i in inputs)
    return min(filter(None, instants), default=None)


def _first(session: Session, of: Table, version: int | None) -> datetime | None:
    """Returns the first event time of one input by its files' statistics, or by its rows if a foreign file has none."""
    least = session.least(of, version)
    if None not in least:
        return min(filter(None, least), default=None)
    rows = session.spanning(of, counting.EVER, version)
    earliest = observing.only(rows.agg(F.min(lateness.instant_of_stored(session.catalog, of))))[0]
    return earliest and earliest.astimezone(UTC)


def behind(session: Session, table: Table, ahead: datetime) -> Range | None:
    """Returns the range from the partition of the inputs' first row to an instant; None if it is empty."""
    earliest = first(session, table)
    start = ranges.floor(earliest, PARTITION_LENGTHS[table.partition_by]) if earliest else ahead
    return Range(start, ahead) if start < ahead else None


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
    """Computes the rows of `span` by the same plan as the stream, over the stored input and the pinned inputs.

    The span is widened by the context that the declared window needs, and cut back after the
    function. Inputs with event time are read at their `versions`, the present ones by default, and
    reference tables at theirs, by default as the stream pinned them. With `touched`
    (`late_merge.missed`) only that is computed. `states` says what becomes of the states of a process
    function (`kept_states`). Lookups use recorded answers; with `ask`, rows without one are asked for
    first, and with "failed" and "all" others again. Raises LookupFailed.
    """
    at, used = present(session, table, versions), pinned(session, table, references)
    # a later version of a versioned table does not change what was valid behind the frontier
    valid_versions = _versions(session, session.catalog.versioned_inputs(table), {})
    others = session.references(used | valid_versions)
    covers = None if touched is None else observing.covers(touched) or [span]

    def read(of: Table, span: Range) -> DataFrame:
        return session.spanning(of, span, at[of.name], covers)

    context = Range(covers[0].start, covers[-1].end) if covers else None
    step, states_before = plan.plan_of(session, table), None
    if table.ttl:
        states_before = kept_states.batch_begins(session, table, span, at, states)
    answers = partial(lookups.of_range, session, step, ask, touched) if table.lookup else None
    met = _met(session, table, span, read)
    read_inputs = _ReadInputs(read, others, met, answers, at)
    judged = _computed(session, step, span, read_inputs, "batch", touched, context, states_before)
    inputs: dict[str, dict[str, Any]] = {"tables": at, "references": used, **refreshed.seen(met)}
    if valid_versions:
        inputs["versioned tables"] = valid_versions
    return Computed(judged, inputs, states_before)


def present(
    lakehouse: Lakehouse, table: Table, given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Returns the versions of the table's inputs with event time: the `given` ones, the present ones of others."""
    return _versions(lakehouse, lakehouse.catalog.timed_inputs(table), given or {})


def _versions(
    lakehouse: Lakehouse, inputs: Sequence[Table], given: Mapping[str, int]
) -> dict[str, int]:
    return {
        t.name: given[t.name] if t.name in given else delta_writer.version(lakehouse.path(t))
        for t in inputs
    }


def preview(
    session: Session, step: Plan, span: Range, references: Mapping[str, DataFrame]
) -> DataFrame:
    """Computes the judged rows of `span`, open or not, as the stream would write them: without late rows, whatever the policy."""
    return _computed(session, step, span, _ReadInputs(session.spanning, references), "early")


def closing(
    session: Session, step: Plan, span: Range, references: Mapping[str, DataFrame]
) -> Computed:
    """Computes the rows of a span that has just closed, for a stream that computes each range as it closes.

    The state before the span is made from the present rows of the inputs, as in a batch run.
    """
    table = step.table
    at = present(session, table) if table.ttl else {}
    states = kept_states.stream_begins(session, table, span, at) if at else None

    def read(of: Table, context: Range) -> DataFrame:
        by_stream = F.col(ORIGIN) == "stream"
        before = (
            lateness.instant_of_stored(session.catalog, of) < F.lit(span.start)
            if states
            else F.lit(False)
        )
        return session.spanning(of, context, at.get(of.name)).where(by_stream | before)

    met = _met(session, table, span, read)
    inputs = _ReadInputs(read, references, met)
    judged = _computed(session, step, span, inputs, "stream", states=states)
    return Computed(judged, refreshed.seen(met), states)


def _met(
    session: Session, table: Table, span: Range, read: Callable[[Table, Range], DataFrame]
) -> list[VersionsSeen]:
    driving = session.catalog.driving(table)
    within = lateness.between(lateness.instant_of_stored(session.catalog, driving), span)
    return refreshed.met(
        session, table, lambda: refreshed.arrival_bounds(read(driving, span).where(within))
    )


@dataclass(frozen=True, slots=True)
class _ReadInputs:
    """The inputs of one computation, and how they are read."""

    rows: Callable[[Table, Range], DataFrame]  # of an input in a range, and maybe more
    references: Mapping[str, DataFrame]
    versions_seen: Sequence[VersionsSeen] = ()
    answers: Callable[[DataFrame, Range], Answers] | None = None  # of a lookup, to rows of a range
    versions: Mapping[str, int] | None = None  # None: the present ones


def _computed(
    session: Session,
    step: Plan,
    span: Range,
    read: _ReadInputs,
    origin: Origin,
    touched: DataFrame | None = None,
    context: Range | None = None,
    states: Beginning | None = None,
) -> DataFrame:
    """Computes the judged rows of `span`; `context` is what `touched` covers, `states` those of a process function."""
    table, (driving, *others) = step.table, session.catalog.timed_inputs(step.table)
    if table.kind.is_report:
        return _reported(session, step, span, read)
    # choosing files and pages by the span pays for its own generated code where there may be many
    chosen = origin == "batch" or span.end - span.start > _LONG

    def within(instant: Column, span: Range) -> Column:
        if chosen:
            return lateness.between(instant, span)
        return lateness.between_passing(instant, span.start, span.end)

    def rows(of: Table, span: Range) -> DataFrame:
        instant = lateness.instant_of_stored(session.catalog, of)
        return read.rows(of, span).where(within(instant, span))

    def computed(context: Range) -> DataFrame:
        duplicates = table.deduplicate
        near = rows(driving, ranges.widened(context, duplicates.within)) if duplicates else None
        beside = {other.name: rows(other, context) for other in others}
        driving_rows = rows(driving, context)
        answers = read.answers(driving_rows, context) if read.answers else None
        inputs = Inputs(
            driving_rows, read.references, beside, near, answers, read.versions_seen, span.end
        )
        judged = step.derived(inputs, origin, touched=touched)
        return _cut(step, judged, lambda moment: within(moment, span))

    context = context or ranges_of.context(span, table)
    if states:
        with process_ttl.over(states.run):
            return computed(Range(states.start, span.end))
    if table.window and table.window.kind == "session":
        begins = first(session, table, read.versions)
        context = holding_whole_sessions(
            context,
            table.window.size,
            begins,
            lambda context: observing.only(computed(context).agg(F.min(f"{WINDOW}.start")))[0],
        )
    return computed(context)


def _cut(step: Plan, judged: DataFrame, within: Callable[[Column], Column]) -> DataFrame:
    """Returns the rows whose instant is `within` a span."""
    # the observation stands in between: a filter must not move below a stateful operator
    judged = judged.observe(f"whole_{step.table.name}", F.count(F.lit(1)).alias("rows"))
    return judged.where(within(lateness.instant_of(step.table.window, step.event_time)))


def closing_prepared(
    step: Plan,
    rows: Mapping[str, DataFrame],
    references: Mapping[str, DataFrame],
    start: datetime | Moment,
    end: datetime | Moment,
) -> DataFrame:
    """Computes what `closing` does, of a table without state, from the rows of the inputs in the context of the span alone."""
    timed = {name: rows[name].where(F.col(ORIGIN) == "stream") for name in step.timed}
    driving = timed.pop(step.driving)
    judged = step.derived(Inputs(driving, references, timed, complete_until=end), "stream")
    return _cut(step, judged, lambda moment: lateness.between_passing(moment, start, end))


def _reported(lakehouse: Lakehouse, step: Plan, span: Range, read: _ReadInputs) -> DataFrame:
    """Computes the judged rows of a report's partitions that end in `span`, each by itself."""
    table, timed = step.table, lakehouse.catalog.timed_inputs(step.table)

    def computed(key: str) -> DataFrame:
        whole = ranges.partition_range(key, table.partition_by)
        within = {
            t.name: lateness.between(lateness.instant_of_stored(lakehouse.catalog, t), whole)
            for t in timed
        }
        rows = {t.name: read.rows(t, whole).where(within[t.name]) for t in timed}
        return step.reference({**read.references, **rows}, whole)

    parts = map(computed, span.partitions(table.partition_by))
    return reduce(DataFrame.unionByName, parts).where(
        lateness.between(lateness.instant_of_window(), span)
    )


def at_once(rows: int, partitions: int) -> int:
    """Returns the number of partitions to compute at once, given the rows of input in all of them."""
    return min(_PARTITIONS, max(1, _ROWS * partitions // max(rows, 1)))


def holding_whole_sessions(
    context: Range,
    gap: timedelta,
    begins: datetime | None,
    earliest_start: Callable[[Range], datetime | None],
) -> Range:
    """Widens the context, by twice as much each time, until no session computed from it may begin before it.

    `begins`: the first event time of the inputs. `earliest_start`: of the sessions that are computed from a context.
    """
    more = max(4 * gap, timedelta(hours=1))
    while begins and context.start > begins:
        earliest = earliest_start(context)
        if earliest is None or earliest.astimezone(UTC) >= context.start + gap:
            break
        context, more = Range(context.start - more, context.end), 2 * more
    return context


def pinned(
    lakehouse: Lakehouse, table: Table, given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Returns the versions of pinned inputs: the `given` ones, else as the stream read them, else the present ones."""
    inputs, given = lakehouse.catalog.pinned_inputs(table), given or {}
    if any(t.name not in given for t in inputs):
        last = next(lakehouse.commit_log(table).by_stream(), None)
        given = {**(last.inputs["references"] if last else {}), **given}
    return _versions(lakehouse, inputs, given)


def backfill(session: Session, table: Table, span: Range, ask: Ask = "missing") -> Commit:
    """Makes `span` (whole partitions, behind the frontier) of `table` hold its batch run, in one Delta commit.

    If the table has these rows already, they stay, and the commit has the version NOTHING. A lookup is asked
    for rows without a recorded answer, or again (`compute`). Raises RangeError before anything is computed.
    """
    [commit] = backfill_together(session, table, [span], ask)
    return commit


def backfill_together(
    session: Session, table: Table, units: Sequence[Range], ask: Ask = "missing"
) -> list[Commit]:
    """Backfills units that follow each other without a gap, computed at once, in one Delta commit."""
    span = Range(units[0].start, units[-1].end)
    check_range(table, span, closed_until(session, table), whole_partitions=True)
    return list(published(session, table, Publication(units, together=True), ask))


def published(
    session: Session, table: Table, publication: Publication, ask: Ask = "missing"
) -> Iterator[Commit]:
    """Computes units, which follow each other without a gap and have been checked, at once, and publishes them.

    The inputs are read as they are now, not as they were for earlier units of the run: rows may have been erased since.
    """
    started, units = time.monotonic(), publication.units
    span = Range(units[0].start, units[-1].end)
    computed = compute(session, table, span, states="keep", ask=ask)
    with kept_states.keeping(session, computed.begun):
        yield from publish(session, table, computed, publication, started)


def rewrite(
    session: Session,
    state: BatchState,
    units: Sequence[Range],
    touched: DataFrame,
    versions: Mapping[str, int],
) -> list[Commit]:
    """Recomputes what is `touched` (`late_merge.missed` at these versions of the inputs) in one Delta commit; other rows stay.

    Gaps between the units are not read. Nothing is computed if nothing is touched.
    """
    started, span = time.monotonic(), Range(units[0].start, units[-1].end)
    table = state.table
    check_range(table, span, state.ahead, whole_partitions=True)
    if touched.isEmpty():
        looked_at = {"tables": dict(versions)}
        commits = [
            unwritten(table, "batch", start=unit.start, end=unit.end, inputs=looked_at)
            for unit in units
        ]
        for commit in commits:
            session.commit_log(table).append(commit)
        return commits
    computed = compute(session, table, span, versions, touched, ask="missing")
    partitions = {p for unit in units for p in unit.partitions(table.partition_by)}
    unit = plan.plan_of(session, table).unit
    stored = session.partitions(table, partitions)
    untouched = stored.join(F.broadcast(touched.select(unit)), unit, "left_anti")
    publication = Publication(units, together=True)
    return list(publish(session, table, computed, publication, started, untouched))
