"""The bounded run: the same plan over stored input, for a closed range."""

import hashlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import declared, delta_log, event_time, judged_rows, live_run, plan, ranges, sinks, sources
from lakehouse.digest import digest
from lakehouse.errors import DeclarationError, RangeError
from lakehouse.event_time import ORIGIN
from lakehouse.files import read_value, replace_file
from lakehouse.frontier import LEDGER, NOTHING, Commit, frontier
from lakehouse.inputs import FileSource
from lakehouse.lake import Lake
from lakehouse.plan import Origin, Plan
from lakehouse.publication import Computed, publish
from lakehouse.ranges import Range
from lakehouse.table import GRAINS, Table

_EVER = Range(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
_ROWS, _PARTITIONS = 5_000_000, 24  # computed at once: kept in memory or on disk, and the streams wait for it to end
_LONG = timedelta(minutes=5)  # of event time: more than a live micro-batch brings unless it catches up


def closed_until(lake: Lake, table: Table) -> datetime:
    """The frontier of a table that has ranges to compute. Raises RangeError for a record, a snapshot, or before any commit."""
    lake.catalog.check_derived(table)
    ahead = frontier(lake.settings, table)
    if ahead is None and delta_log.files(lake.path(table)):
        raise RangeError(
            f"table={table.name}, journal={lake.journal(table).path}: the table has rows, and its journal no live commit, "
            "so its frontier is not known; restore the journal, or start the job of the table"
        )
    if ahead is None:
        raise RangeError(f"table={table.name}: nothing is closed before the live run's first commit; start its job")
    return ahead


def first(lake: Lake, table: Table) -> datetime | None:
    """The first event time that the table's input has."""
    driving = lake.catalog.driving_input(table)
    found = lake.spanning(driving, _EVER).agg(F.min(lake.catalog.event_time(driving))).head()[0]
    return found and found.astimezone(UTC)


def behind(lake: Lake, table: Table, ahead: datetime) -> Range | None:
    """From the partition of the first row of the table's input up to an instant; None if that is no range."""
    found = first(lake, table)
    start = ranges.floor(found, GRAINS[table.grain]) if found else ahead
    return Range(start, ahead) if start < ahead else None


def check_range(lake: Lake, table: Table, span: Range, *, whole_partitions: bool) -> datetime:
    """The frontier, if `span` may be computed. Raises RangeError as `closed_until`, and for a range that crosses it."""
    ahead = closed_until(lake, table)
    if span.end > ahead:
        raise RangeError(
            f"table={table.name}, range end={ranges.text(span.end)}: it crosses the frontier {ranges.text(ahead)}; "
            "rows ahead of the frontier belong to the live run; end the range at or before it"
        )
    if whole_partitions and not span.aligned(table.grain):
        raise RangeError(
            f"table={table.name}, range={span}: a replaced range is whole {table.grain}s, for that is what is replaced "
            f"atomically; move both ends to a full {table.grain}"
        )
    return ahead


def compute(
    lake: Lake,
    table: Table,
    span: Range,
    version: int | None = None,
    touched: DataFrame | None = None,
    snapshots: Mapping[str, int] | None = None,
) -> Computed:
    """The rows of `span` by the same plan as the live run, over the stored input and the pinned snapshots.

    The span is widened by the context that the declared window needs, and cut back after the function. The input is read
    at `version`, the present one by default, and `snapshots` at theirs, by default as the live run pinned them. With `touched`
    (`updates.missed`) only that is computed.
    """
    driving = lake.catalog.driving_input(table)
    version = sinks.version(lake.path(driving)) if version is None else version
    versions = pinned(lake, table) | dict(snapshots or {})
    # what was valid behind the frontier no later version of a history tells otherwise
    kept = {history.name: sinks.version(lake.path(history)) for history in lake.catalog.histories(table)}
    others = lake.snapshots(versions | kept)
    covers = None if touched is None else _covers(touched) or [span]
    read = partial(lake.spanning, driving, version=version, within=covers)
    context = Range(covers[0].start, covers[-1].end) if covers else None
    step = plan.plan_of(lake, table)
    judged = _computed(lake, step, span, read, others, "bounded", touched, context)
    inputs = {"tables": {driving.name: version}, "snapshots": versions} | ({"histories": kept} if kept else {})
    return Computed(judged, inputs)


def preview(lake: Lake, step: Plan, span: Range, snapshots: Mapping[str, DataFrame]) -> DataFrame:
    """The judged rows of `span`, open or not, as the live run would write them: late rows stay out, whatever the policy."""
    return _computed(lake, step, span, partial(lake.spanning, lake.catalog.table(step.driving)), snapshots, "early")


def closing(lake: Lake, step: Plan, span: Range, snapshots: Mapping[str, DataFrame]) -> DataFrame:
    """The judged rows of a span that has just closed, for a live run that computes each range as it closes."""
    driving = lake.catalog.table(step.driving)
    return _computed(lake, step, span, lambda of: lake.spanning(driving, of).where(f"{ORIGIN} = 'live'"), snapshots, "live")


def _computed(
    lake: Lake,
    step: Plan,
    span: Range,
    read: Callable[[Range], DataFrame],
    snapshots: Mapping[str, DataFrame],
    origin: Origin,
    touched: DataFrame | None = None,
    context: Range | None = None,
) -> DataFrame:
    """The judged rows of `span`; `read` gives the input's of a range, and maybe more. `context`: what `touched` covers."""
    table, moment = step.table, F.col(lake.catalog.event_time(lake.catalog.table(step.driving)))
    # to choose files and pages by pays for code of its own if there may be many
    chosen = origin == "bounded" or span.end - span.start > _LONG
    between = event_time.between if chosen else event_time.between_passing
    within = between(event_time.instant_of(table.window, step.event_time), span)

    def rows(of: Range) -> DataFrame:
        return read(of).where(between(moment, of))

    def computed(context: Range) -> DataFrame:
        others = rows(ranges.widened(context, table.deduplicate.within)) if table.deduplicate else None
        judged = step.derived(rows(context), snapshots, origin, None, touched, others, span.end)
        # the observation stands between the cut and the function: a filter must not move below a stateful operator
        return judged.observe(f"whole_{table.name}", F.count(F.lit(1)).alias("rows")).where(within)

    context = context or event_time.context(span, table)
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
    begins, more = first.head()[0], max(4 * gap, timedelta(hours=1))
    while begins and context.start > begins.astimezone(UTC):
        earliest = computed(context).agg(F.min(f"{event_time.WINDOW}.start")).head()[0]
        if earliest is None or earliest.astimezone(UTC) >= context.start + gap:
            break
        context, more = Range(context.start - more, context.end), 2 * more
    return context


def pinned(lake: Lake, table: Table) -> dict[str, int]:
    """The versions of snapshot inputs that the live run read; the present ones if it has not run."""
    last = next(lake.journal(table).live(), None)
    known = dict(last.inputs["snapshots"]) if last else {}  # type: ignore[call-overload]
    return {t.name: known.get(t.name, sinks.version(lake.path(t))) for t in lake.catalog.snapshot_inputs(table)}


def backfill(lake: Lake, table: Table, span: Range) -> Commit:
    """Makes `span` (whole partitions, behind the frontier) of `table` hold its bounded run, in one Delta commit.

    Rows that are these already stay, and the commit has the version NOTHING. Raises RangeError before anything is computed.
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


def rewrite(lake: Lake, table: Table, units: Sequence[Range], touched: DataFrame, version: int) -> list[Commit]:
    """As `backfill_together`, of what is `touched` (`updates.missed` at that version of the input) alone; other rows stay.

    There may be gaps between the units, of which nothing is read. Where nothing is touched nothing is computed.
    """
    started, span = time.monotonic(), Range(units[0].start, units[-1].end)
    check_range(lake, table, span, whole_partitions=True)
    if touched.isEmpty():
        commits = [_looked_at(lake, table, unit, version) for unit in units]
        for commit in commits:
            lake.journal(table).append(commit)
        return commits
    computed = compute(lake, table, span, version, touched)
    partitions = {p for unit in units for p in unit.partitions(table.grain)}
    there = lake.partitions(table, partitions, sinks.version(lake.path(table)))
    unit = plan.plan_of(lake, table, judged=False).unit
    untouched = there.join(F.broadcast(touched.select(unit)), unit, "left_anti")
    return list(publish(lake, table, computed, units, started, untouched=untouched, together=True))


def _looked_at(lake: Lake, table: Table, unit: Range, version: int) -> Commit:
    """The line of a unit in which nothing was to be rewritten."""
    return Commit(
        table=table.name, role="bounded", generation=0, batch=0, version=NOTHING, at=datetime.now(UTC),
        fingerprint=table.fingerprint, inputs={"tables": {lake.catalog.driving_input(table).name: version}},
        start=unit.start, end=unit.end,
    )  # fmt: skip


def refresh(lake: Lake, table: Table) -> Commit | None:
    """As `rebuild`; computes nothing if the table, its declaration, its files and the versions of its inputs are as then."""
    _make_inputs(lake, table)
    noted = read_value(_noted(lake, table), dict, f"{table.name} is computed anew")
    there = (lake.path(table) / "_delta_log").is_dir()  # it may have been removed, to be filled again
    if there and noted and noted == _of(lake, table, _inputs(lake, table)):
        return None
    return rebuild(lake, table)


def rebuild(lake: Lake, table: Table) -> Commit | None:
    """Computes a snapshot table whole and replaces it; None if its rows are already these. Raises DeclarationError.

    A state or history its own job computes anew, when it is started the next time.
    """
    if table.keeps:
        live_run.renew(lake, table)
        declared.keep(lake.settings, lake.catalog, table)  # nothing will be left of what it was
        return None
    if lake.catalog.kind(table) != "snapshot":
        raise RangeError(f"table={table.name}: it has event time; give a range (start and end)")
    _make_inputs(lake, table)
    sinks.create(lake, table)
    read = _inputs(lake, table)  # looked at first: of a file that changes meanwhile the next look sees another
    commit = _rebuilt(lake, table)
    replace_file(_noted(lake, table), _of(lake, table, read))
    return commit


def _make_inputs(lake: Lake, table: Table) -> None:
    """A snapshot is computed before any query runs: a state that it reads has no rows then, and was perhaps never made."""
    for name in table.inputs:
        if name in lake.catalog.tables and not lake.exists(lake.catalog.table(name)):
            sinks.create(lake, lake.catalog.table(name))


def _noted(lake: Lake, table: Table) -> Path:
    return lake.settings.root / LEDGER / f"{table.name}.snapshot.json"


def _of(lake: Lake, table: Table, inputs: dict[str, object]) -> dict[str, object]:
    return {"version": sinks.version(lake.path(table)), "fingerprint": table.fingerprint, "inputs": inputs}


def _inputs(lake: Lake, table: Table) -> dict[str, object]:
    """What tells whether the inputs are the same: versions of tables, digests of local files; of others never."""
    found: dict[str, object] = {}
    for name in table.inputs:
        source = lake.catalog.sources.get(name)
        if not isinstance(source, FileSource):
            found[name] = sinks.version(lake.path(lake.catalog.table(name)))
        elif (path := Path(source.path)).is_file():
            with path.open("rb") as file:
                found[name] = [source.schema, source.format, source.header, hashlib.file_digest(file, "sha256").hexdigest()]
        else:
            found[name] = uuid.uuid4().hex
    return found


def _rebuilt(lake: Lake, table: Table) -> Commit | None:
    started, inputs = time.monotonic(), {}
    for name in table.inputs:
        source, read = lake.catalog.sources.get(name), lake.catalog.tables.get(name)
        inputs[name] = plan.as_read(read, lake.read(read)) if read else sources.file_rows(lake.spark, source)
    judged = plan.plan_of(lake, table).snapshot(inputs)
    if broken := judged.where(F.col(judged_rows.REASON).isNotNull()).head():
        raise DeclarationError(
            f"table={table.name}: {broken[judged_rows.REASON]} does not hold of {broken.asDict()}; a snapshot is replaced whole "
            "or not at all, and the old one stays; correct its source"
        )
    rows = judged_rows.good(judged)
    if digest(rows) == digest(lake.read(table)) and sinks.version(lake.path(table)) > 0:
        return None
    run = uuid.uuid4().hex
    version = sinks.overwrite(rows, lake.path(table), {"run": run, "fingerprint": table.fingerprint})
    commit = Commit(
        table=table.name, role="snapshot", generation=0, batch=0, version=version, at=datetime.now(UTC),
        fingerprint=table.fingerprint, written=lake.read(table, version).count(), seconds=time.monotonic() - started,
    )  # fmt: skip
    lake.journal(table).append(commit)
    return commit


def late_rows(lake: Lake, table: Table) -> DataFrame:
    """The late view: the rows of the driving input that came too late for this table, with the window they missed."""
    if not lake.catalog.is_derived(table):
        raise RangeError(f"table={table.name}: only tables behind a record have late rows; a record keeps every row")
    driving = lake.catalog.driving_input(table)
    rows = lake.read(driving).where(f"{ORIGIN} = 'live'")
    return event_time.late(event_time.flagged(rows, table, lake.catalog.event_time(driving)))
