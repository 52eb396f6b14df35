"""The proof: the bounded run of a closed range, compared with what the table holds of it."""

import time
from datetime import UTC, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import event_time, plan, sinks, updates
from lakehouse.bounded import check_range, compute
from lakehouse.digest import Difference, differences, digest
from lakehouse.errors import RangeError
from lakehouse.event_time import ARRIVAL, ORIGIN, Range, partition_range
from lakehouse.frontier import NOTHING, Certificate, Verdict, certify, frontier
from lakehouse.lake import Lake
from lakehouse.table import Table


def reconcile(lake: Lake, table: Table, span: Range | None = None) -> Certificate:
    """Recomputes `span` (default: from the table's first row up to the frontier) and compares it with the table.

    Only behind the frontier; of a row table's open partition only rows whose arrival the frontier has passed, the same
    on both sides. Nothing is changed. The verdict is recorded in `_certificates`. Raises RangeError.
    """
    started = time.monotonic()
    ahead = frontier(lake.settings, table)
    if span is None:
        span = _whole(lake, table, ahead)
    check_range(lake, table, span, whole_partitions=False)
    version = sinks.version(lake.path(table))
    if not table.proof:
        return _unprovable(lake, table, span, ahead, version)
    computed = compute(lake, table, span)
    instant = event_time.instant_of(table.window, lake.catalog.event_time(table))
    actual = lake.read(table, version).where(event_time.between(instant, span))
    expected = plan.good(computed.judged)
    if lake.catalog.kind(table) == "row":
        settled = F.col(f"{ARRIVAL}.watermark") < F.lit(ahead)
        expected, actual = expected.where(settled), actual.where(settled)
    ours, theirs = digest(actual), digest(expected)
    found = None if ours == theirs else differences(expected, actual, _keys(lake, table), table.tolerance)
    by_bounded = actual.where(f"{ORIGIN} = 'bounded'").count()
    verdict, detail = "EQUAL", ""
    if found is not None and found.total:
        verdict, detail, found = _explained(lake, table, span, expected, actual, found)
    certificate = Certificate(
        table=table.name, start=span.start, end=span.end, verdict=verdict, rows_live=ours.rows, rows_bounded=theirs.rows,
        rows_by_bounded_runs=by_bounded, digest_live=str(ours), digest_bounded=str(theirs), frontier=ahead,
        version=version, inputs=computed.inputs, fingerprint=table.fingerprint, at=datetime.now(UTC),
        seconds=time.monotonic() - started, missing=found.missing if found else 0, extra=found.extra if found else 0,
        changed=found.changed if found else 0, examples=found.examples if found else (), detail=detail,
    )  # fmt: skip
    certify(lake.settings, [certificate])
    return certificate


def _unprovable(lake: Lake, table: Table, span: Range, ahead: datetime, version: int) -> Certificate:
    certificate = Certificate(
        table=table.name, start=span.start, end=span.end, verdict="UNPROVABLE", rows_live=0, rows_bounded=0,
        rows_by_bounded_runs=0, digest_live="", digest_bounded="", frontier=ahead, version=version, inputs={},
        fingerprint=table.fingerprint, at=datetime.now(UTC), seconds=0.0,
        detail="declared with proof=False: its runs may differ, so a difference would say nothing",
    )  # fmt: skip
    certify(lake.settings, [certificate])
    return certificate


def _explained(
    lake: Lake, table: Table, span: Range, expected: DataFrame, actual: DataFrame, found: Difference
) -> tuple[Verdict, str, Difference]:
    """PENDING if all that differs is known to wait for a bounded run, else DIFFERENT with what differs besides."""
    if table.late != "update":
        rewritten = _rewritten(lake, table, span)
        return ("PENDING", rewritten, found) if rewritten else ("DIFFERENT", "", found)
    waiting = [
        d for d in updates.dirty(lake.settings, lake.catalog, table)
        if (whole := partition_range(d.partition, table.grain)).start < span.end and whole.end > span.start
    ]  # fmt: skip
    detail = f"late rows wait in {', '.join(d.partition for d in waiting) or 'the input'}; `lakehouse update {table.name}`"
    if any(not d.closed for d in waiting):
        detail += " rewrites a partition once it has closed"
    settled = updates.settled(lake, table, span, waiting)
    others = differences(settled(expected), settled(actual), _keys(lake, table), table.tolerance)
    return ("DIFFERENT", "", others) if others.total else ("PENDING", detail, found)


def _rewritten(lake: Lake, table: Table, span: Range) -> str:
    """What to do if the input was rewritten after this table's rows were made; empty if it was not."""
    driving = lake.catalog.driving_input(table)
    span = event_time.context(span, table.window, table.grain)
    for commit in lake.journal(driving).rewriting():
        if commit.role == "bounded" and commit.version != NOTHING and commit.start < span.end and commit.end > span.start:
            followed = any(
                c.role == "bounded" and c.at > commit.at and c.start <= span.start and c.end >= span.end
                for c in lake.journal(table).rewriting()
            )
            if not followed:
                return f"{driving.name} was rewritten at {event_time.text(commit.at)}; backfill this range to follow"
    return ""


def _whole(lake: Lake, table: Table, ahead: datetime | None) -> Range:
    if ahead is None:
        raise RangeError(f"table={table.name}: nothing is closed before the live run's first commit; start its job")
    driving = lake.catalog.driving_input(table)
    moment = lake.catalog.event_time(driving)
    first = lake.read(driving).agg(F.min(moment)).head()[0]
    start = event_time.floor(first.astimezone(UTC), event_time.GRAINS[table.grain]) if first else ahead
    if start >= ahead:
        raise RangeError(
            f"table={table.name}: its frontier {event_time.text(ahead)} is not past its first row yet; nothing to compare"
        )
    return Range(start, ahead)


def _keys(lake: Lake, table: Table) -> tuple[str, ...]:
    return (event_time.WINDOW, *table.keys) if table.window else table.keys
