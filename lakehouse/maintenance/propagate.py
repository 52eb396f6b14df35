"""The tables that follow an ingest table after a person changed rows that its streams had read: they are computed again."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F

from lakehouse.batch import batch_state, compute
from lakehouse.declare.columns import WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.ranges import (
    OPEN_END,
    PARTITION_LENGTHS,
    Range,
    floor,
    joined,
    partition_range,
    text,
)
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commits import unwritten
from lakehouse.storage.session import Session
from lakehouse.transform import observing, ranges_of

_HOUR = timedelta(hours=1)


@contextmanager
def alone(session: Session, ingest: Table) -> Iterator[None]:
    """Takes the locks of the ingest table and of all tables that hold something computed from it. Raises JobError."""
    with ExitStack() as locks:
        for table in (ingest, *derived(session, ingest)):
            locks.enter_context(publishing(session.settings, table))
        yield


def derived(lakehouse: Lakehouse, ingest: Table) -> list[Table]:
    """Returns the tables that hold something computed from the ingest table, inputs first."""
    tables = (lakehouse.catalog.table(name) for name in lakehouse.catalog.downstream(ingest))
    # rows count as well: a batch run up to a handover may have written them, or the log may be gone
    filled = []
    for table in (table for table in tables if table.kind.is_derived):
        by_stream = lakehouse.commit_log(table).by_stream()
        if next(by_stream, None) or delta_log.files(lakehouse.path(table)):
            filled.append(table)
    return filled


def spans(
    session: Session, ingest: Table, hours: Iterable[datetime]
) -> dict[str, tuple[Range, ...]]:
    """Returns the ranges of each table to compute again, with those of earlier rewrites that it has not followed yet.

    Raises RangeError if a stream still writes there, or if it is not known where the rows are.
    """
    by_table: dict[str, list[Range]] = {
        ingest.name: [Range(hour, hour + _HOUR) for hour in sorted(hours)]
    }
    for table in derived(session, ingest):
        inputs = session.catalog.timed_inputs(table)
        _check_event_time(session, inputs[0], table)
        state = batch_state.read(session, table)
        ahead = state.ahead
        waiting = (partition_range(p, table.partition_by) for p in state.outdated)
        changed = [span for each in inputs for span in by_table.get(each.name, ())]
        closed = floor(ahead, PARTITION_LENGTHS[table.partition_by])
        reached = [ranges_of.reached(table, span, closed) for span in changed]
        reached += [whole for whole in waiting if whole.end <= ahead]
        whole_spans = joined(sorted(reached, key=lambda span: span.start))
        touched = [_extended(session, table, span) for span in whole_spans]
        partitions = {p for span in touched for p in span.partitions(table.partition_by)}
        wholes = [partition_range(p, table.partition_by) for p in sorted(partitions)]
        if table.kind.is_report:  # open partitions of a report are not computed
            wholes = [whole for whole in wholes if whole.end <= ahead]
        again = by_table[table.name] = joined(wholes)
        if again and again[-1].end > ahead:
            raise RangeError(
                f"table={ingest.name}: {table.name} has something of these rows in what closes at {text(again[-1].end)}, and "
                f"its frontier is {text(ahead)}; try again when it is past that, or with older rows only"
            )
    return {name: tuple(again) for name, again in by_table.items() if again and name != ingest.name}


def note(
    lakehouse: Lakehouse,
    ingest: Table,
    version: int,
    hours: Mapping[datetime, int],
    *,
    written: bool,
) -> None:
    """Records that rows of these hours of event time came or went: tables that read them are outdated in these hours."""
    for span in joined(Range(hour, hour + _HOUR) for hour in sorted(hours)):
        count = sum(n for hour, n in hours.items() if span.start <= hour < span.end)
        noted = unwritten(ingest, "batch", start=span.start, end=span.end, arrived=count)
        commit = replace(noted, version=version, written=count if written else 0)
        lakehouse.commit_log(ingest).append(commit)


def follow(session: Session, spans: Mapping[str, Iterable[Range]]) -> None:
    """Computes the ranges of each table again."""
    for name, each in spans.items():
        for span in each:
            compute.backfill(session, session.catalog.table(name), span)


def _check_event_time(lakehouse: Lakehouse, driving: Table, table: Table) -> None:
    own, moment = lakehouse.catalog.event_time(table), lakehouse.catalog.time_column(driving)
    if own != moment:
        raise RangeError(
            f"table={table.name}, event_time={own}: rows of {driving.name} are followed by its {moment}, and may lie anywhere in "
            f"{table.name}; give both tables one event time"
        )


def _extended(session: Session, table: Table, span: Range) -> Range:
    """Returns the span, extended to the ends of the sessions that it reaches into."""
    if table.window is None or table.window.kind != "session":
        return span
    # the input counts as well: a session that continues is not stored yet
    computed = compute.compute(session, table, Range(span.start, OPEN_END)).judged.select(WINDOW)
    inside = (F.col(f"{WINDOW}.start") < F.lit(span.end)) & (
        F.col(f"{WINDOW}.end") > F.lit(span.start)
    )
    windows = session.read(table).select(WINDOW).unionByName(computed).where(inside)
    latest = observing.only(windows.agg(F.max(f"{WINDOW}.end")))[0]
    return Range(span.start, max(span.end, latest.astimezone(UTC))) if latest else span
