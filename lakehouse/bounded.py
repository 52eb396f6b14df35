"""The bounded run: the same plan over stored input, for a closed range."""

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import delta_log, event_time, live_run, plan, ranges, sinks, sources
from lakehouse.digest import digest
from lakehouse.errors import DeclarationError, RangeError
from lakehouse.event_time import ORIGIN
from lakehouse.files import replace_file
from lakehouse.frontier import LEDGER, NOTHING, Commit, frontier
from lakehouse.inputs import FileSource
from lakehouse.lake import Lake
from lakehouse.plan import Origin, Plan
from lakehouse.publication import Computed, publish
from lakehouse.ranges import Range
from lakehouse.table import GRAINS, Table

_EVER = Range(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
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
    found = lake.read(driving).agg(F.min(lake.catalog.event_time(driving))).head()[0]
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
    read = partial(lake.spanning, driving, version=version)
    step = plan.plan_of(lake, table)
    judged = _computed(lake, step, span, read, others, "bounded", touched)
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
) -> DataFrame:
    """The judged rows of `span`; `read` gives the input's of a range, and maybe more."""
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

    context = event_time.context(span, table) if touched is None else _covered(touched, span)
    if table.window and table.window.kind == "session":
        first = read(_EVER).agg(F.min(moment))
        context = _holding_whole_sessions(context, table.window.size, first, computed)
    return computed(context)


def _covered(touched: DataFrame, span: Range) -> Range:
    """The event time that `touched` covers; `span` if there is nothing."""
    first, last = touched.agg(F.min("_from"), F.max("_to")).head()
    return Range(first.astimezone(UTC), last.astimezone(UTC)) if first else span


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


def rewrite(lake: Lake, table: Table, span: Range, touched: DataFrame, version: int) -> Commit:
    """As `backfill`, of what is `touched` (`updates.missed` at that version of the input) alone; other rows stay.

    Where nothing is touched nothing is computed.
    """
    started = time.monotonic()
    check_range(lake, table, span, whole_partitions=True)
    if touched.isEmpty():
        commit = Commit(
            table=table.name, role="bounded", generation=0, batch=0, version=NOTHING, at=datetime.now(UTC),
            fingerprint=table.fingerprint, inputs={"tables": {lake.catalog.driving_input(table).name: version}},
            start=span.start, end=span.end, seconds=time.monotonic() - started,
        )  # fmt: skip
        lake.journal(table).append(commit)
        return commit
    computed = compute(lake, table, span, version, touched)
    there = lake.partitions(table, set(span.partitions(table.grain)), sinks.version(lake.path(table)))
    untouched = there.join(F.broadcast(touched), plan.plan_of(lake, table, judged=False).unit, "left_anti")
    [commit] = publish(lake, table, computed, [span], started, untouched=untouched)
    return commit


def refresh(lake: Lake, table: Table) -> Commit | None:
    """As `rebuild`; computes nothing if the table, its declaration, its files and the versions of its inputs are as then."""
    noted = _noted(lake, table)
    there = (lake.path(table) / "_delta_log").is_dir()  # it may have been removed, to be filled again
    if there and noted.exists() and json.loads(noted.read_text()) == _of(lake, table, _inputs(lake, table)):
        return None
    return rebuild(lake, table)


def rebuild(lake: Lake, table: Table) -> Commit | None:
    """Computes a snapshot table whole and replaces it; None if its rows are already these. Raises DeclarationError.

    A state or history its own job computes anew, when it is started the next time.
    """
    if table.keeps:
        live_run.renew(lake, table)
        return None
    if lake.catalog.kind(table) != "snapshot":
        raise RangeError(f"table={table.name}: it has event time; give a range (start and end)")
    sinks.create(lake, table)
    read = _inputs(lake, table)  # looked at first: of a file that changes meanwhile the next look sees another
    commit = _rebuilt(lake, table)
    replace_file(_noted(lake, table), _of(lake, table, read))
    return commit


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
                found[name] = [source.schema, source.format, hashlib.file_digest(file, "sha256").hexdigest()]
        else:
            found[name] = uuid.uuid4().hex
    return found


def _rebuilt(lake: Lake, table: Table) -> Commit | None:
    started, inputs = time.monotonic(), {}
    for name in table.inputs:
        source = lake.catalog.sources.get(name)
        is_file = isinstance(source, FileSource)
        inputs[name] = sources.file_rows(lake.spark, source) if is_file else lake.read(lake.catalog.table(name))
    judged = plan.plan_of(lake, table).snapshot(inputs)
    if broken := judged.where(F.col(plan.REASON).isNotNull()).head():
        raise DeclarationError(
            f"table={table.name}: {broken[plan.REASON]} does not hold of {broken.asDict()}; a snapshot is replaced whole "
            "or not at all, and the old one stays; correct its source"
        )
    rows = plan.good(judged)
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
