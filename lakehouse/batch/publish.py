"""How a batch run gets into its table: a Delta commit and a line of the commit log for each unit, whole partitions.

Where the table has these rows already they stay, so a reconciliation still compares what the stream
wrote, and what reads the table has nothing to follow. The line then has the version NOTHING: the
unit was looked at.
"""

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.batch.kept_states import Beginning
from lakehouse.batch.report_drawing import drawn
from lakehouse.declare.columns import PARTITION, REASON
from lakehouse.declare.table import Table
from lakehouse.ranges import Range
from lakehouse.storage.delta import delta_writer
from lakehouse.storage.delta.digest import EMPTY, Digest, digests_by
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import remove, replace_file
from lakehouse.storage.disk.layout import Side
from lakehouse.storage.disk.publish_lock import Publishing, published_by
from lakehouse.storage.keyed import lookup_answers
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import report_files
from lakehouse.storage.log.commits import NOTHING, Commit, decoded, encoded
from lakehouse.storage.session import Session
from lakehouse.transform.checks import judged_rows


@dataclass(frozen=True, slots=True)
class Computed:
    """The judged rows of a range, not yet run, and what they are computed from."""

    judged: DataFrame
    inputs: Mapping[str, Mapping[str, Any]]
    begun: Beginning | None = None  # with which states, of a table whose process function has some


@dataclass(frozen=True, slots=True)
class _Found:
    """What was computed, and in which partitions the table and its quarantine hold something else."""

    rows: DataFrame
    bad: DataFrame
    counts: Mapping[str, Counter[str]]
    differ: frozenset[str]
    aside: frozenset[str]
    wanted: Mapping[str, Digest]  # of the rows of each partition that has any


@dataclass(frozen=True, slots=True)
class _Line:
    """A unit's line in the commit log, as it is before anything is written, and its partitions."""

    commit: Commit
    partitions: list[str]

    def among(self, partitions: Set[str]) -> bool:
        return not partitions.isdisjoint(self.partitions)


def publish(
    session: Session,
    table: Table,
    computed: Computed,
    units: Sequence[Range],
    started: float,
    *,
    untouched: DataFrame | None = None,
    run: int = 0,
    left: int = 0,
    together: bool = False,
) -> Iterator[Commit]:
    """Makes the table hold what was computed, unit after unit, and yields the lines that it adds to the commit log.

    `untouched`: rows of the table that stay beside what was computed. `run` numbers the runs of
    many units; each line says how many are still to come, with the `left` that are not among these.
    The first line has the time since `started`. `together`: the units that differ are replaced
    in one Delta commit; each unit has its own line all the same.
    """
    recover(session, table)
    judged = computed.judged.persist()
    try:
        keys = {unit: list(unit.partitions(table.partition_by)) for unit in units}
        comparison = _found(
            session, table, replace(computed, judged=judged), list(chain(*keys.values())), untouched
        )
        lines: list[_Line] = []
        for position, (unit, partitions) in enumerate(keys.items(), 1):
            counts = sum((comparison.counts.get(p, Counter()) for p in partitions), Counter())
            commit = Commit(
                table=table.name,
                role="batch",
                generation=run,
                batch=left + len(units) - position,
                version=NOTHING,
                at=datetime.now(UTC),
                code_version=table.code_version,
                quarantined=counts["bad"],
                written=counts["good"],
                inputs=computed.inputs,
                start=unit.start,
                end=unit.end,
            )
            lines.append(_Line(commit, partitions))
        for lot in [lines] if together else [[line] for line in lines]:
            yield from _committed(session, table, comparison, lot, started)
            started = time.monotonic()
    finally:
        judged.unpersist()


def recover(lakehouse: Lakehouse, table: Table) -> None:
    """Adds the lines that a crash kept from the commit log: of units whose Delta commit was made.

    Without them, what reads the table would never follow, because the next run finds the rows
    there.
    """
    path = layout.note(lakehouse.settings, table, "publishing.json")
    if (noted := published_by(lakehouse.settings, table)) is None:
        return
    version = delta_writer.replaced(lakehouse.path(table), noted.run, noted.before)
    if version is not None:
        logged = {(line.version, line.start) for line in lakehouse.commit_log(table).rewriting()}
        for line in map(decoded, noted.commits):
            if (version, line.start) not in logged:
                lakehouse.commit_log(table).append(
                    replace(line, version=version, at=datetime.now(UTC))
                )
    remove(path)


def _committed(
    lakehouse: Lakehouse, table: Table, found: _Found, lot: Sequence[_Line], started: float
) -> Iterator[Commit]:
    """Replaces what differs of these units, in one Delta commit; then their lines."""
    path, commit_log = lakehouse.path(table), lakehouse.commit_log(table)
    span = Range(lot[0].commit.span.start, lot[-1].commit.span.end)
    metadata = {
        "run": uuid.uuid4().hex,
        "code_version": table.code_version,
        "range": str(span),
        "inputs": lot[0].commit.inputs,
    }
    if aside := [p for line in lot if line.among(found.aside) for p in line.partitions]:
        delta_writer.replace(
            found.bad.where(F.col(PARTITION).isin(aside)),
            lakehouse.path(table, "quarantine"),
            aside,
            metadata,
        )
    # before anything is written: a function that fails leaves the table as it was
    files = (
        drawn(table, found.rows, [p for line in lot for p in line.partitions])
        if table.kind.is_report
        else {}
    )
    written = NOTHING
    differing = [line for line in lot if line.among(found.differ)]
    if differing:
        partitions = [p for line in differing for p in line.partitions]
        commits = tuple(encoded(e.commit) for e in differing)
        noted = Publishing(str(metadata["run"]), delta_writer.version(path), commits)
        replace_file(layout.note(lakehouse.settings, table, "publishing.json"), asdict(noted))
        written = delta_writer.replace(
            found.rows.where(F.col(PARTITION).isin(partitions)), path, partitions, metadata
        )
    for partition, content in files.items():
        rows = str(found.wanted.get(partition, EMPTY))
        report_files.keep(
            lakehouse.settings, table, partition, delta_writer.version(path), rows, content
        )
    for number, line in enumerate(lot):
        took = time.monotonic() - started if number == 0 else 0.0
        version = written if line in differing else NOTHING
        commit = replace(line.commit, version=version, at=datetime.now(UTC), seconds=took)
        commit_log.append(commit)
        if table.lookup:
            lookup_answers.note_shown(lakehouse.settings, table, line.partitions)
        if number + 1 == len(lot):  # all of them are on disk
            remove(layout.note(lakehouse.settings, table, "publishing.json"))
        yield commit


def _found(
    session: Session,
    table: Table,
    computed: Computed,
    partitions: list[str],
    untouched: DataFrame | None,
) -> _Found:
    judged = computed.judged
    rows, bad = judged_rows.good(judged), judged_rows.bad(judged)
    outcome = F.struct(PARTITION, F.col(REASON).isNull().alias("good"))
    all_good = F.struct(PARTITION, F.lit(True).alias("good"))
    stored = [_stored(session, table, "", partitions)]
    if untouched is not None:
        rows, stored = rows.unionByName(untouched), [*stored, untouched]
    outcomes, *others = digests_by((judged, outcome), *((each, all_good) for each in stored))
    counts: dict[str, Counter[str]] = {}
    expected: dict[str, Digest] = {}
    for (partition, is_good), made in outcomes.items():
        counts.setdefault(partition, Counter())["good" if is_good else "bad"] = made.rows
        if is_good:
            expected[partition] = made
    present, *kept = (
        {partition: each for (partition, _), each in by_outcome.items()} for by_outcome in others
    )
    for partition, each in chain(*(of.items() for of in kept)):
        expected[partition] = expected.get(partition, EMPTY) + each
    aside = frozenset(session.lost(table, partitions, side="quarantine"))
    # two passes over bad rows are paid for only when there is something to quarantined or to take
    # away
    if any(each["bad"] for each in counts.values()) or delta_writer.holds(
        session.path(table, "quarantine"), partitions
    ):
        quarantined_rows = _stored(session, table, "quarantine", partitions)
        made_bad, held = digests_by((bad, F.col(PARTITION)), (quarantined_rows, F.col(PARTITION)))
        aside |= _differing(made_bad, held, partitions)
    differ = _differing(expected, present, partitions) | frozenset(session.lost(table, partitions))
    return _Found(rows, bad, counts, differ, aside, expected)


def _stored(session: Session, table: Table, side: Side, partitions: list[str]) -> DataFrame:
    """What the table holds of them and can be read: a partition with a file that is lost is replaced whatever that is."""
    return session.partitions(
        table,
        set(partitions),
        delta_writer.version(session.path(table, side)),
        side,
        without_lost=True,
    )


def _differing(
    wanted: Mapping[str, Digest], there: Mapping[str, Digest], partitions: list[str]
) -> frozenset[str]:
    """The partitions in which there are other rows than those wanted."""
    return frozenset(p for p in partitions if wanted.get(p) != there.get(p))
