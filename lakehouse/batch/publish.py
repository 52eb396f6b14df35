"""Writes a batch run into its table, in whole partitions: a Delta commit and a line of the commit log for each unit.

If the table has these rows already, they stay: a reconciliation still compares what the stream wrote,
and readers of the table have nothing to follow. The line then has the version NOTHING.
"""

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, compress, groupby
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.batch.kept_states import Beginning
from lakehouse.declare.columns import PARTITION, REASON, WINDOW, quoted
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.ranges import Range, partition_range
from lakehouse.storage.delta import committer, delta_writer
from lakehouse.storage.delta.digest import EMPTY, Digest, digests_by
from lakehouse.storage.keyed import lookup_answers
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import report_files
from lakehouse.storage.log.commits import NOTHING, Commit, recorded, unwritten
from lakehouse.storage.session import Session
from lakehouse.transform.checks import judged_rows

_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Computed:
    """The judged rows of a range, not yet run, and the inputs that they are computed from."""

    judged: DataFrame
    inputs: Mapping[str, Mapping[str, Any]]
    begun: Beginning | None = None  # of a process function with a lasting state


@dataclass(frozen=True, slots=True)
class Publication:
    """The units of one computation, and how they are written."""

    units: Sequence[Range]
    run: int = 0  # numbers the runs of many units
    left: int = 0  # units of that run still to come after these
    together: bool = False  # those that differ in one Delta commit; a line each all the same


@dataclass(frozen=True, slots=True)
class _Found:
    """The computed rows, and the partitions in which the table and its quarantine hold others."""

    rows: DataFrame
    bad: DataFrame
    counts: Mapping[str, Counter[str]]
    differ: frozenset[str]
    aside: frozenset[str]
    wanted: Mapping[str, Digest]  # of the rows of each partition that has any


def publish(
    session: Session,
    table: Table,
    computed: Computed,
    publication: Publication,
    started: float,
    untouched: DataFrame | None = None,
) -> Iterator[Commit]:
    """Makes the table hold the computed rows, unit after unit, and yields the lines that it adds to the commit log.

    `untouched` are rows of the table that stay beside the computed ones. The first line has the time since `started`.
    """
    session.commit_log(table).read_on()  # what a crash kept from it
    judged = computed.judged.persist()
    try:
        units = publication.units
        keys = {unit: list(unit.partitions(table.partition_by)) for unit in units}
        comparison = _found(session, table, judged, [*chain(*keys.values())], untouched)
        lines: list[Commit] = []
        for position, (unit, partitions) in enumerate(keys.items(), 1):
            counts = sum((comparison.counts.get(p, Counter()) for p in partitions), Counter())
            line = unwritten(
                table,
                "batch",
                start=unit.start,
                end=unit.end,
                run=publication.run,
                left=publication.left + len(units) - position,
                quarantined=counts["bad"],
                written=counts["good"],
                inputs=computed.inputs,
            )
            lines.append(line)
        for lot in [lines] if publication.together else [[line] for line in lines]:
            yield from _committed(session, table, comparison, lot, started)
            started = time.monotonic()
    finally:
        judged.unpersist()


def _committed(
    lakehouse: Lakehouse, table: Table, comparison: _Found, lot: Sequence[Commit], started: float
) -> Iterator[Commit]:
    """Replaces the units that differ, in one Delta commit, and appends the lines of all."""
    path, commit_log = lakehouse.path(table), lakehouse.commit_log(table)
    span = Range(lot[0].span.start, lot[-1].span.end)
    keys = [list(line.span.partitions(table.partition_by)) for line in lot]
    differing, to_quarantine = (
        [not chosen.isdisjoint(partitions) for partitions in keys]
        for chosen in (comparison.differ, comparison.aside)
    )
    metadata = {
        "run": uuid.uuid4().hex,
        "code_version": table.code_version,
        "range": str(span),
        "inputs": lot[0].inputs,
    }
    if aside := [*chain(*compress(keys, to_quarantine))]:
        delta_writer.replace(
            comparison.bad.where(F.col(PARTITION).isin(aside)),
            lakehouse.path(table, "quarantine"),
            aside,
            metadata,
        )
    # before anything is written: a function that fails leaves the table as it was
    files = _drawn(table, comparison.rows, chain(*keys)) if table.kind.is_report else {}
    written_version = NOTHING
    commits: list[Commit] = []

    def noted() -> dict[str, Any]:
        took, now = time.monotonic() - started, datetime.now(UTC)
        commits.extend(
            replace(line, at=now + n * _MOMENT, seconds=0.0 if n else took)
            for n, line in enumerate(lot)
        )
        return recorded(compress(commits, differing), metadata)

    if any(differing):
        partitions = [*chain(*compress(keys, differing))]
        written_version = delta_writer.replace(
            comparison.rows.where(F.col(PARTITION).isin(partitions)), path, partitions, noted
        )
    if not commits:
        noted()
    committer.check(path)  # of what follows is no commit that would be refused
    for partition, content in files.items():
        rows = str(comparison.wanted.get(partition, EMPTY))
        report_files.keep(
            lakehouse.settings, table, partition, delta_writer.version(path), rows, content
        )
    made = [
        replace(commit, version=written_version if differs else NOTHING)
        for commit, differs in zip(commits, differing, strict=True)
    ]
    for written, together in groupby(made, lambda commit: commit.version != NOTHING):
        commit_log.append(*together, recorded=written)
    if table.lookup:
        for partitions in keys:
            lookup_answers.note_shown(lakehouse.settings, table, partitions)
    yield from made


def _found(
    session: Session,
    table: Table,
    judged: DataFrame,
    partitions: list[str],
    untouched: DataFrame | None,
) -> _Found:
    rows, bad = judged_rows.good(judged), judged_rows.bad(judged)
    outcome = F.struct(PARTITION, F.col(REASON).isNull().alias("good"))
    all_good = F.struct(PARTITION, F.lit(True).alias("good"))
    in_table, lost = session.readable(table, partitions)
    stored = [in_table]
    if untouched is not None:
        rows, stored = rows.unionByName(untouched), [*stored, untouched]
    outcomes, *others = digests_by((judged, outcome), *((each, all_good) for each in stored))
    counts: dict[str, Counter[str]] = {}
    expected: dict[str, Digest] = {}
    for (partition, is_good), computed_digest in outcomes.items():
        counts.setdefault(partition, Counter())["good" if is_good else "bad"] = computed_digest.rows
        if is_good:
            expected[partition] = computed_digest
    present, *kept = (
        {partition: each for (partition, _), each in by_outcome.items()} for by_outcome in others
    )
    for partition, each in chain(*(of.items() for of in kept)):
        expected[partition] = expected.get(partition, EMPTY) + each
    aside: frozenset[str] = frozenset()
    # two passes over bad rows are made only if there are rows to quarantine or to remove
    if any(each["bad"] for each in counts.values()) or delta_writer.holds(
        session.path(table, "quarantine"), partitions
    ):
        quarantined_rows, gone = session.readable(table, partitions, side="quarantine")
        made_bad, stored_bad = digests_by(
            (bad, F.col(PARTITION)), (quarantined_rows, F.col(PARTITION))
        )
        aside = _differing(made_bad, stored_bad, partitions, gone)
    differ = _differing(expected, present, partitions, lost)
    return _Found(rows, bad, counts, differ, aside, expected)


def _differing(
    wanted: Mapping[str, Digest],
    present: Mapping[str, Digest],
    partitions: list[str],
    lost: Iterable[Mapping],
) -> frozenset[str]:
    """Returns the partitions whose rows differ from those wanted, or of which a file is lost."""
    differing = {p for p in partitions if wanted.get(p) != present.get(p)}
    return frozenset(differing | {file[f"partition.{PARTITION}"] for file in lost})


def _drawn(table: Table, rows: DataFrame, partitions: Iterable[str]) -> dict[str, bytes | None]:
    """Returns the file of each partition, drawn from its good rows; None if the report has no `draw`.

    Raises DeclarationError if `draw` returns neither text nor bytes.
    """
    assert table.report
    if (draw := table.report.draw) is None:
        return dict.fromkeys(partitions)
    drawings: dict[str, bytes | None] = {}
    for partition in partitions:
        of_partition = rows.where(F.col(PARTITION) == partition)
        of_partition = (
            of_partition.orderBy(*map(quoted, table.keys)) if table.keys else of_partition
        )
        shown = [quoted(c) for c in rows.columns if not c.startswith("_") and c != WINDOW]
        drawing = draw(
            of_partition.select(*shown).toArrow(), partition_range(partition, table.partition_by)
        )
        if not isinstance(drawing, str | bytes):
            raise DeclarationError(
                f"table={table.name}, report draw={draw.__qualname__}: it returned {type(drawing).__name__}; return text or bytes"
            )
        drawings[partition] = drawing.encode() if isinstance(drawing, str) else drawing
    return drawings
