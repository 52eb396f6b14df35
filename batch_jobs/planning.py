"""The plan of a backfill, from Delta's statistics and the commit logs: without a session, and without a change."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakehouse import ranges
from lakehouse.batch import batch_state, compute
from lakehouse.batch.batch_state import BatchState
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.lookups import Ask
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.ranges import PARTITION_LENGTHS, Range, brief, partition_range
from lakehouse.reconcile.unchanged import unchanged
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk.publish_lock import holder
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import frontier
from lakehouse.transform import ranges_of

_RUNS = 100  # the latest runs, from which the time of the next is estimated


@dataclass(frozen=True, slots=True)
class Downstream:
    """A table that reads this one, and the range of it that a rewrite of all partitions would change."""

    table: str
    start: datetime
    end: datetime
    partitions: int


@dataclass(frozen=True, slots=True)
class Backfill:
    """The plan of a backfill: what it would read and replace, and which tables would have to follow.

    The input is all files that the range's context touches, as whole files: an upper bound for the
    rows that will be read.
    """

    table: str
    start: datetime
    end: datetime
    frontier: datetime
    partitions: tuple[str, ...]
    run: int  # its number; 0: all partitions in one commit
    done: tuple[str, ...]  # partitions that this run had done before it was cut short
    unchanged: tuple[str, ...]  # of the others, since they were reconciled: they are not computed
    at_once: int  # partitions that are computed together
    rows_replaced: int
    input: str
    context_start: datetime
    context_end: datetime
    input_rows: int
    input_files: int
    input_bytes: int
    downstream: tuple[Downstream, ...]  # PENDING where rows change, until they follow
    conflicts: tuple[str, ...]
    estimated_seconds: float | None  # at the rate of earlier batch runs

    @property
    def span(self) -> Range:
        return Range(self.start, self.end)


def plan(
    lakehouse: Lakehouse,
    table_name: str,
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    whole: bool = False,
    ask: Ask = "missing",
    again: bool = False,
) -> Backfill | None:
    """Returns the plan of `backfill.run`, and refuses what that would refuse; None for a table that has no range.

    Raises RangeError, UnknownTable.
    """
    table, catalog = lakehouse.catalog.table(table_name), lakehouse.catalog
    if ask != "missing" and not table.lookup:
        raise RangeError(
            f"table={table.name}, ask_again={ask!r}: it has no lookup, so there is no service to ask; leave it out, or name "
            f"{', '.join(t.name for t in catalog if t.lookup) or 'a table that has one, of which there is none'}"
        )
    if not (start and end):
        if start or end or (not table.kind.is_reference and not table.kind.is_upserted):
            raise RangeError(
                f"table={table.name}: a backfill needs both ends of its range; give --start and --end"
            )
        return None
    span = Range(start, end)
    state = batch_state.checked(lakehouse, table, span)
    timed = catalog.timed_inputs(table)
    context = ranges_of.context(span, table)
    partitions = tuple(span.partitions(table.partition_by))
    inputs, stored = replaceable(lakehouse, table, partitions)
    files = [f for each in timed for f in inputs[each.name] if lakehouse.may_hold(each, f, context)]
    rows = sum(f["num_records"] or 0 for f in files)
    run, done = (0, set()) if whole else unfinished(lakehouse, state, span)
    return Backfill(
        table=table.name,
        start=span.start,
        end=span.end,
        frontier=state.ahead,
        partitions=partitions,
        run=run,
        done=tuple(sorted(done)),
        unchanged=()
        if whole or again
        else tuple(unchanged(lakehouse, table, [p for p in partitions if p not in done])),
        at_once=compute.at_once(rows, len(partitions)),
        rows_replaced=sum(f["num_records"] or 0 for f in stored),
        input=", ".join(inputs),
        context_start=context.start,
        context_end=context.end,
        input_rows=rows,
        input_files=len(files),
        input_bytes=sum(f["size_bytes"] for f in files),
        downstream=tuple(
            Downstream(t.name, s.start, s.end, len(list(s.partitions(t.partition_by))))
            for t, s in reading(lakehouse, table, span)
        ),
        conflicts=tuple(_conflicts(lakehouse, state, partitions, context)),
        estimated_seconds=_estimated(state, len(partitions) - len(done)),
    )


def reading(lakehouse: Lakehouse, table: Table, span: Range) -> list[tuple[Table, Range]]:
    """Returns the tables computed from this one, in order, each with the whole partitions that the range reaches."""
    reached = {table.name: (table, span)}
    for each in lakehouse.catalog:  # inputs come first
        changed = [
            reached[t.name][1] for t in lakehouse.catalog.timed_inputs(each) if t.name in reached
        ]
        if changed:
            length = PARTITION_LENGTHS[each.partition_by]
            until = frontier(lakehouse.settings, each) if each.ttl else None
            touched = [ranges_of.reached(each, span, until) for span in changed]
            last = max(span.end for span in touched) - timedelta(microseconds=1)
            start = ranges.floor(min(span.start for span in touched), length)
            reached[each.name] = (each, Range(start, ranges.floor(last + length, length)))
    return list(reached.values())[1:]


def unfinished(lakehouse: Lakehouse, state: BatchState, span: Range) -> tuple[int, set[str]]:
    """Returns the number of the run over `span` that was cut short, and the partitions it has done.

    If there is none, returns the next number and no partitions.

    A partition is not done if the declaration, the reference tables or its own input have changed
    since. Newer versions of the input alone do not count: behind the frontier the stream adds only
    late rows to it.
    """
    table, lines = state.table, [c for c in state.runs if c.run]
    if not lines:
        return 1, set()
    last = lines[0]
    mine = [c for c in lines if c.run == last.run]
    by_partition = {p: c for c in mine for p in c.span.partitions(table.partition_by)}
    whole = len(list(span.partitions(table.partition_by)))
    is_this_range = min(c.span.start for c in mine) == span.start
    if not last.left or not is_this_range or len(by_partition) + last.left != whole:
        return last.run + 1, set()
    now = (table.code_version, compute.pinned(lakehouse, table))
    done = {p for p, c in by_partition.items() if (c.code_version, c.inputs["references"]) == now}
    return last.run, done - state.waiting


def replaceable(
    lakehouse: Lakehouse, table: Table, partitions: Collection[str]
) -> tuple[dict[str, list[dict]], list[dict]]:
    """Returns the files of each input, and those of the table in these partitions, which a backfill replaces.

    Raises RangeError if the table has rows from before the first one that its inputs still have.
    """
    catalog = lakehouse.catalog
    inputs = {t.name: delta_log.files(lakehouse.path(t)) for t in catalog.timed_inputs(table)}
    own, mine = delta_log.files(lakehouse.path(table)), set(partitions)
    stored = [f for f in own if f[f"partition.{PARTITION}"] in mine]
    _check_retained(catalog, table, inputs, stored)
    return inputs, stored


def _check_retained(
    catalog: Catalog, table: Table, inputs: Mapping[str, list[dict]], stored: list[dict]
) -> None:
    firsts: list[datetime] = []
    for each in catalog.timed_inputs(table):
        column, before = _placed_by(catalog, each)
        minima = [f.get(column) for f in inputs[each.name] if f["num_records"]]
        firsts += [minimum - before for minimum in minima if minimum is not None]
        if None in minima:
            return  # a file without statistics says nothing about its rows
    column, before = _placed_by(catalog, table)
    first = min(firsts, default=None)
    filled = [f for f in stored if f["num_records"]]
    if first is not None:
        filled = [f for f in filled if f.get(column) and f[column] - before < first]
    if lost := sorted({f[f"partition.{PARTITION}"] for f in filled}):
        left = f"begins at {ranges.text(first)}" if first else "is empty"
        raise RangeError(
            f"table={table.name}, partitions={lost[0]} to {lost[-1]} ({len(lost)}): the input of their rows is gone, "
            f"because {' and '.join(inputs)} {left}, and a backfill would replace them by fewer or none; begin the range after "
            "them, or restore the input"
        )


def _placed_by(catalog: Catalog, table: Table) -> tuple[str, timedelta]:
    """Returns the column whose minimum is a file's first instant, and how far that instant lies before the minimum."""
    before = timedelta(microseconds=1) if table.window else timedelta(0)
    return f"min.{catalog.time_statistic(table)}", before


def _conflicts(
    lakehouse: Lakehouse, state: BatchState, partitions: Collection[str], context: Range
) -> list[str]:
    table, conflicts = state.table, []
    if pid := holder(lakehouse.settings, table):
        conflicts.append(
            f"pid {pid} is rewriting {table.name}: a backfill is refused until that process has ended"
        )
    if waiting := [d.partition for d in state.dirty if d.partition in partitions]:
        conflicts.append(f"late rows wait in {brief(waiting)}: this run merges them, too")
    for each in lakehouse.catalog.timed_inputs(table):
        if each.kind.reads_sources:
            continue
        stale = batch_state.read(lakehouse, each).waiting
        spans = {p: partition_range(p, each.partition_by) for p in stale}
        if waiting := sorted(p for p, s in spans.items() if s.overlaps(context)):
            conflicts.append(
                f"{each.name} is to be rewritten in {brief(waiting)}: {table.name} will be PENDING again then"
            )
    return conflicts


def _estimated(state: BatchState, partitions: int) -> float | None:
    lines = [c for c in state.runs if c.written][:_RUNS]
    done = sum(len(list(c.span.partitions(state.table.partition_by))) for c in lines)
    return partitions * sum(c.seconds for c in lines) / done if done else None
