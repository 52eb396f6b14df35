"""The reconciliation: the comparison of a closed range of a table with its batch run, partition by partition."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.batch import batch_state, compute, kept_states, late_merge, lookups
from lakehouse.declare.columns import ARRIVAL, ORIGIN, PARTITION, WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.ranges import Range, partition_range
from lakehouse.reconcile import diagnosis, keyed_tables
from lakehouse.reconcile.provenance import by_references
from lakehouse.reconcile.verdicts import GRAVEST
from lakehouse.storage.delta import delta_log, delta_writer
from lakehouse.storage.delta.digest import EMPTY, Difference, Digest, differences, digests_by
from lakehouse.storage.log import report_files
from lakehouse.storage.log.certificates import COUNTS, Certificate, certify
from lakehouse.storage.log.reconcile_attempts import noting_failure
from lakehouse.storage.position.reference_versions import NotKept
from lakehouse.storage.session import Session
from lakehouse.transform import lateness, ranges_of
from lakehouse.transform.analysis import validation
from lakehouse.transform.checks import judged_rows


@dataclass(frozen=True, slots=True)
class _Sides:
    """A table's rows of a range behind its frontier, and those of the batch run. Digests are by partition."""

    span: Range
    actual: DataFrame
    expected: DataFrame
    inputs: Mapping[str, object]
    ours: Mapping[str, Digest]
    theirs: Mapping[str, Digest]
    by_batch: Mapping[str, int]  # rows of the table that a batch run wrote
    lost: Mapping[str, str]  # partition of which a file is missing -> the name of that file
    states: datetime | None = None  # the instant of kept states that its rows do not give

    @property
    def keys(self) -> list[str]:
        return sorted(self.ours.keys() | self.theirs.keys() | self.lost.keys())

    @property
    def unequal(self) -> list[str]:
        ours, theirs = self.ours, self.theirs
        differing = {key for key in self.keys if ours.get(key, EMPTY) != theirs.get(key, EMPTY)}
        return sorted(differing | self.lost.keys())


def reconcile(session: Session, table: Table, span: Range | None = None) -> Certificate:
    """Reconciles `span`, records the parts, and returns one certificate over all, with the gravest of the verdicts."""
    return summed(reconcile_parts(session, table, span))


def reconcile_parts(session: Session, table: Table, span: Range | None = None) -> list[Certificate]:
    """Recomputes `span` (default: from the first row up to the frontier) and compares it with the table.

    Returns a certificate for each partition, in order; neighbours without a row on either side share one.
    The part ahead of the frontier is OPEN. In a row table's open partition, both sides are compared by
    the rows alone whose arrival the frontier has passed. The input is read as it is now,
    reference tables as the writers of the rows read them. Nothing is changed; the verdicts are
    recorded in `_certificates`. A keyed or versioned table has no ranges: it is recomputed whole,
    from the ingest table at the version that its last commit had read. Raises RangeError.
    """
    with noting_failure(session.settings, table, span) as certificates:
        certificates += _reconciled(session, table, span)
        certify(session.settings, certificates)
    return certificates


def _reconciled(session: Session, table: Table, span: Range | None) -> list[Certificate]:
    """Returns the certificates of `reconcile_parts`, not recorded yet."""
    started = time.monotonic()
    if table.kind.is_upserted:
        return [keyed_tables.reconciled(session, table, span, started)]
    ahead = batch_state.closed_until(session, table)
    if table.kind.is_report and not session.exists(table):
        raise RangeError(
            f"table={table.name}: nothing of this report is computed yet, so nothing to compare; Dagster computes what closes, "
            f"or `lakehouse backfill {table.name}`"
        )
    span = span or _whole(session, table, ahead)
    blank = Certificate(
        table=table.name,
        start=span.start,
        end=span.end,
        verdict="EQUAL",
        rows_in_table=0,
        rows_recomputed=0,
        rows_by_batch_runs=0,
        checksum_in_table=str(EMPTY),
        checksum_recomputed=str(EMPTY),
        frontier=ahead,
        version=delta_writer.version(session.path(table)),
        inputs={"tables": compute.present(session, table)},
        code_version=table.code_version,
        at=datetime.now(UTC),
        seconds=0.0,
    )
    parts: list[Certificate] = []
    if span.start < ahead:
        parts += _behind(session, table, Range(span.start, min(span.end, ahead)), blank)
    if span.end > ahead:
        detail = f"ahead of the frontier {ranges.text(ahead)}, where the stream is still to write"
        parts.append(replace(blank, start=max(span.start, ahead), verdict="OPEN", detail=detail))
    # the time taken is divided among the certificates by their rows
    share = (time.monotonic() - started) / sum(
        1 + c.rows_in_table + c.rows_recomputed for c in parts
    )
    return [replace(c, seconds=share * (1 + c.rows_in_table + c.rows_recomputed)) for c in parts]


def summed(certificates: Sequence[Certificate]) -> Certificate:
    """Returns one certificate for neighbouring ranges: counts and digests are those of all rows together."""
    verdict = min((c.verdict for c in certificates), key=GRAVEST.index)
    gravest = [c for c in certificates if c.verdict == verdict]
    digests = ("checksum_in_table", "checksum_recomputed")
    sums: dict[str, Any] = {
        name: sum(getattr(c, name) for c in certificates) for name in (*COUNTS, "seconds")
    }
    for name in digests:
        parsed = (Digest.parsed(getattr(c, name)) for c in certificates)
        sums[name] = str(reduce(Digest.__add__, parsed))
    return replace(
        certificates[-1],
        start=certificates[0].start,
        verdict=verdict,
        inputs=gravest[0].inputs,
        **sums,
        examples=tuple(e for c in certificates for e in c.examples)[:20],
        detail="; ".join(dict.fromkeys(c.detail for c in gravest if c.detail)),
        cause="; ".join(dict.fromkeys(c.cause for c in gravest if c.cause)),
    )


def _behind(
    session: Session, table: Table, span: Range, blank: Certificate
) -> Iterator[Certificate]:
    """Yields the certificates of a range behind the frontier, in order."""
    if not table.deterministic:
        detail = "declared with deterministic=False: its runs may differ, so a difference would say nothing"
        yield replace(blank, end=span.end, verdict="UNVERIFIABLE", detail=detail)
        return
    for part, references in by_references(session, table, span):
        paths = {name: session.path(session.catalog.table(name)) for name in references}
        gone = [n for n, version in references.items() if version < delta_log.oldest(paths[n])]
        if gone:
            listed = ", ".join(f"{name} at version {references[name]}" for name in gone)
            detail = f"it was computed with {listed}, not kept any more"
            yield _unverifiable(blank, part, detail)
            continue
        try:
            sides = _computed(session, table, part, references, blank)
        except NotKept as err:  # for some rows, perhaps in some partitions only
            yield from _apart(session, table, part, blank, str(err))
            continue
        # this looks at all of the input, so it is read only if a digest differs
        first = compute.first(session, table) if sides.unequal else None
        by_key = {key: c for key in sides.unequal if (c := _gone(table, key, sides, first, blank))}
        unequal = [key for key in sides.unequal if key not in by_key]
        if unequal:
            again = partial(_computed, session, table, part, references, blank)
            by_key |= _compared(session, table, sides, unequal, blank, again)
        if table.kind.is_report:
            sound = {k: str(sides.ours.get(k, EMPTY)) for k in sides.keys if k not in by_key}
            for key, judged in diagnosis.of_files(session, table, sound).items():
                by_key[key] = _certificate(sides, table, key, blank, **judged)
        yield from (
            diagnosis.of_states(each, sides.states) for each in _pieces(table, sides, by_key, blank)
        )


def _unverifiable(blank: Certificate, span: Range, detail: str) -> Certificate:
    return replace(blank, start=span.start, end=span.end, verdict="UNVERIFIABLE", detail=detail)


def _pieces(
    table: Table, sides: _Sides, by_key: Mapping[str, Certificate], blank: Certificate
) -> Iterator[Certificate]:
    """Yields a certificate for each partition with rows, and one for neighbours without a row."""
    reached, without_row = sides.span.start, replace(blank, inputs=sides.inputs)
    for key in sides.keys:
        piece = by_key.get(key) or _certificate(sides, table, key, blank)
        if reached < piece.start:
            yield replace(without_row, start=reached, end=piece.start)
        yield piece
        reached = piece.end
    if reached < sides.span.end:
        yield replace(without_row, start=reached, end=sides.span.end)


def _apart(
    session: Session, table: Table, span: Range, blank: Certificate, why: str
) -> Iterator[Certificate]:
    """Yields the certificates as `_behind` does, by halves, until a single partition cannot be computed any more."""
    keys = list(span.partitions(table.partition_by))
    if len(keys) == 1:
        yield _unverifiable(blank, span, why)
        return
    middle = partition_range(keys[len(keys) // 2], table.partition_by).start
    for part in (Range(span.start, middle), Range(middle, span.end)):
        yield from _behind(session, table, part, blank)


def _computed(
    session: Session, table: Table, span: Range, references: Mapping[str, int], blank: Certificate
) -> _Sides:
    computed = compute.compute(session, table, span, references=references, states="compare")
    instant = lateness.instant_of_stored(session.catalog, table)
    partitions = set(span.partitions(table.partition_by))
    stored, missing = session.readable(table, partitions, blank.version)
    lost = {file[f"partition.{PARTITION}"]: file["path"] for file in missing}
    if lost:
        session.check_reachable(table, blank.version)
    actual = stored.where(lateness.between(instant, span))
    expected = judged_rows.good(computed.judged)
    if table.kind.is_row_by_row:
        settled = F.col(f"{ARRIVAL}.watermark") < F.lit(blank.frontier)
        expected, actual = expected.where(settled), actual.where(settled)
    once_more = F.struct(PARTITION, F.lit("batch").alias(ORIGIN))
    held, made = digests_by((actual, F.struct(PARTITION, ORIGIN)), (expected, once_more))
    ours: dict[str, Digest] = {}
    by_batch: dict[str, int] = {}
    for (key, origin), part in held.items():
        ours[key] = ours.get(key, EMPTY) + part
        if origin == "batch":
            by_batch[key] = part.rows
    theirs = {key: part for (key, _), part in made.items()}
    if table.kind.is_report:  # a partition without rows has a file, too
        keys = span.partitions(table.partition_by)
        whole = [k for k in keys if partition_range(k, table.partition_by).end <= span.end]
        theirs = dict.fromkeys(whole, EMPTY) | theirs
    states = kept_states.differing(session, computed.begun)
    return _Sides(span, actual, expected, computed.inputs, ours, theirs, by_batch, lost, states)


def _certificate(
    sides: _Sides, table: Table, key: str, blank: Certificate, **judged: Any
) -> Certificate:
    """Returns the certificate of a partition, EQUAL unless `judged` says otherwise."""
    span = _piece(key, table, sides.span)
    ours, theirs = sides.ours.get(key, EMPTY), sides.theirs.get(key, EMPTY)
    return replace(
        blank,
        start=span.start,
        end=span.end,
        inputs=sides.inputs,
        rows_in_table=ours.rows,
        rows_recomputed=theirs.rows,
        rows_by_batch_runs=sides.by_batch.get(key, 0),
        checksum_in_table=str(ours),
        checksum_recomputed=str(theirs),
        **judged,
    )


def _compared(
    session: Session,
    table: Table,
    sides: _Sides,
    keys: list[str],
    blank: Certificate,
    again: Callable[[], _Sides],
) -> dict[str, Certificate]:
    """Returns the certificates of partitions whose digests differ, after a comparison row by row, with their causes."""
    asked = F.col(PARTITION).isin(keys)
    differ = _differences(table, sides.expected.where(asked), sides.actual.where(asked))
    waiting, differ = _pending(session, table, sides, differ)
    unanswered = {}
    if table.lookup and differ:
        questions = lookups.questions(session, table, sides.span)
        unanswered = lookups.missing(session, table, questions, sides.span)
    ties = validation.ties(session, table) if differ else []
    why = diagnosis.causes(session, table, list(differ), sides.theirs, lambda: again().theirs, ties)
    why |= {key: diagnosis.unanswered(unanswered[key]) for key in differ if key in unanswered}
    # EQUAL within the tolerance
    judged: dict[str, dict[str, Any]] = {key: {"verdict": "EQUAL"} for key in keys}
    counted = keyed_tables.counted
    for key, (difference, detail) in waiting.items():
        judged[key] = counted(difference) | {"verdict": "PENDING", "detail": detail}
    for key, difference in differ.items():
        judged[key] = counted(difference) | {"verdict": "DIFFERENT", "cause": why[key]}
    # a lost file decides, whatever else the partition waits for: its rows cannot be read
    for key in sides.lost.keys() & judged.keys():
        judged[key] |= {"verdict": "DIFFERENT", "cause": diagnosis.lost(sides.lost[key])}
    return {key: _certificate(sides, table, key, blank, **judged[key]) for key in judged}


def _differences(table: Table, expected: DataFrame, actual: DataFrame) -> dict[str, Difference]:
    keys = (WINDOW, *table.keys) if table.window else table.keys
    return differences(expected, actual, keys, PARTITION, table.tolerance)


def _pending(
    session: Session, table: Table, sides: _Sides, differing: dict[str, Difference]
) -> tuple[dict[str, tuple[Difference, str]], dict[str, Difference]]:
    """Returns the differences that wait for a batch run, each with a text of that run, and then the other differences."""
    if not differing:
        return {}, {}
    state = batch_state.read(session, table)
    if table.late != "update":
        inputs = " or ".join(each.name for each in session.catalog.timed_inputs(table))
        again = ", or its lookup asked again," if table.lookup else ""
        follow = f"{inputs} was rewritten{again} since; backfill this range to follow"
        why = dict.fromkeys(state.outdated, follow)
        if table.kind.is_report:
            done = report_files.computed(session.settings, table)
            why |= {key: diagnosis.NOT_COMPUTED for key in differing if key not in done}
        waiting = {key: (differing[key], why[key]) for key in differing if key in why}
        return waiting, {
            key: difference for key, difference in differing.items() if key not in waiting
        }
    wholes = [partition_range(d.partition, table.partition_by) for d in state.dirty]
    dirt = [d for d, whole in zip(state.dirty, wholes, strict=True) if whole.overlaps(sides.span)]
    detail = f"late rows wait in {', '.join(d.partition for d in dirt) or 'the input'}; `lakehouse update {table.name}`"
    detail += " rewrites a partition once it has closed" if any(not d.closed for d in dirt) else ""
    settled = late_merge.settled(session, table, sides.span, dirt)
    others = _differences(table, settled(sides.expected), settled(sides.actual))
    waiting = {key: (differing[key], detail) for key in differing if key not in others}
    return waiting, {key: others[key] for key in others if key in differing}


def _piece(key: str, table: Table, span: Range) -> Range:
    """Returns the partition, as far as it lies in `span`."""
    whole = partition_range(key, table.partition_by)
    return Range(max(whole.start, span.start), min(whole.end, span.end))


def _gone(
    table: Table, key: str, sides: _Sides, first: datetime | None, blank: Certificate
) -> Certificate | None:
    """Returns an UNVERIFIABLE certificate if all of the partition's input is older than the input's first row now, else None."""
    context = ranges_of.context(_piece(key, table, sides.span), table)
    if key in sides.theirs or (first and context.end > first):
        return None
    detail = "its input is empty"
    if first:
        detail = f"its input is not kept any more: its first row is of {ranges.text(first)}"
    if key in sides.lost:
        detail = f"data file {sides.lost[key]} is missing and cannot be computed again, for {detail}; restore it from a backup"
    return _certificate(sides, table, key, blank, verdict="UNVERIFIABLE", detail=detail)


def _whole(session: Session, table: Table, ahead: datetime) -> Range:
    if (span := compute.behind(session, table, ahead)) is None:
        raise RangeError(
            f"table={table.name}: its frontier {ranges.text(ahead)} is not past its first row yet; nothing to compare"
        )
    return span
