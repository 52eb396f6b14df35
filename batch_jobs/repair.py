"""The repair: rewrites the partitions known to differ, and reconciles each again.

`_commit_log/<table>.repairs.jsonl` keeps a line for each repair, with the differences before and
the verdict after.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from batch_jobs import planning
from lakehouse.batch import compute
from lakehouse.declare.table import Table
from lakehouse.ranges import BEGINNING, Range, partition_range
from lakehouse.reconcile import coverage, diagnosis, reconciliation
from lakehouse.reconcile.coverage import Coverage
from lakehouse.settings import Repair, Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.notes import Notes
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.disk.typed_values import typed
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import reconcile_attempts
from lakehouse.storage.log.certificates import Verdict
from lakehouse.storage.session import Session

# causes that a batch run repairs without anybody's decision: the input is as it was recorded, and so
# is the declaration
_UNASKED = (
    diagnosis.LOST,
    diagnosis.BY_HAND,
    diagnosis.TWICE,
    diagnosis.DROPPED,
    diagnosis.STATES,
    diagnosis.REPORT,
    diagnosis.UNKNOWN,
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A partition known to differ; `refused` says why it is left as it is."""

    partition: str
    rows: int  # the number of rows that differ
    cause: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Unreconciled:
    """Closed partitions of a table that may differ: those without a verdict, and those changed since they had one."""

    table: str
    partitions: int  # closed ones that were asked for
    unknown: tuple[str, ...]
    changed: tuple[str, ...]
    failed: str  # why the last reconciliation ended without a verdict; empty if it ended with one

    @property
    def verdictless(self) -> bool:
        """Returns True if "nothing is to be repaired" would be untrue: the last run failed, or no partition has a verdict."""
        return bool(self.failed) or (bool(self.unknown) and len(self.unknown) == self.partitions)


@dataclass(frozen=True, slots=True)
class Repaired:
    """A partition that was rewritten, and the verdict after that."""

    table: str
    partition: str
    rows: int  # that differed
    cause: str
    version: int
    verdict: Verdict
    at: datetime


def plan(
    lakehouse: Lakehouse, name: str, span: Range | None = None, *, unasked: bool = False
) -> list[Planned]:
    """Returns the partitions of a table that are known to differ, by their certificates. Needs no session.

    With `unasked`, three kinds are left to a person: those that `settings.repair` does not allow,
    those that a repair did not help, and those whose cause asks for a decision (changed code,
    dimensions or inputs). Raises UnknownTable.
    """
    table = lakehouse.catalog.table(name)
    allowed = lakehouse.settings.repair.get(name, Repair())
    done = list(repairs(lakehouse.settings, table))
    today = [r for r in done if r.at > datetime.now(UTC) - timedelta(days=1)]
    partitions = allowed.partitions - len(today)
    rows = allowed.rows - sum(r.rows for r in today)
    plans = []
    for planned in _differing(coverage.coverage(lakehouse, table), table):
        if span and not span.covers(planned.partition, table.partition_by):
            continue
        refused = _refused(planned, done) if unasked else ""
        if unasked and not refused and (partitions < 1 or rows < planned.rows):
            refused = f"beyond what the setting `repair` allows of {name} a day"
        if not refused:
            partitions, rows = partitions - 1, rows - planned.rows
        plans.append(replace(planned, refused=refused))
    return plans


def allowed(lakehouse: Lakehouse, table: Table) -> list[str]:
    """Returns the partitions that are repaired without a request, as far as the setting `repair` allows now."""
    if table.kind.is_upserted or table.name not in lakehouse.settings.repair:
        return []
    plans = plan(lakehouse, table.name, unasked=True)
    return [planned.partition for planned in plans if not planned.refused]


def unreconciled(lakehouse: Lakehouse, name: str, span: Range | None = None) -> Unreconciled:
    """Returns the closed partitions of a table (those in `span`) that are not known to differ or to be equal."""
    table = lakehouse.catalog.table(name)
    lakehouse.catalog.check_derived(table)

    def inside(partition: str) -> bool:
        return span is None or span.covers(partition, table.partition_by)

    covered = coverage.coverage(lakehouse, table)
    closed = coverage.closed(lakehouse.settings, table, (), BEGINNING)
    asked = [p for p in (closed.partitions(table.partition_by) if closed else ()) if inside(p)]
    unknown = tuple(key for key in covered.unknown if inside(key))
    changed = tuple(due.partition for due in covered.changed if inside(due.partition))
    failed = reconcile_attempts.failed(lakehouse.settings, table)
    return Unreconciled(name, len(asked), unknown, changed, failed)


def _differing(covered: Coverage, table: Table) -> list[Planned]:
    """Returns, in order, the partitions whose last verdict is DIFFERENT, and those of which a data file is missing."""
    by_partition = {}
    for lost in covered.lost:
        cause = diagnosis.lost(lost.file)
        by_partition[lost.partition] = Planned(lost.partition, lost.rows, cause)
    for c in covered.different:
        key = next(Range(c.start, c.end).partitions(table.partition_by))
        by_partition[key] = Planned(key, c.missing + c.extra + c.changed, c.cause)
    return [by_partition[key] for key in sorted(by_partition)]


def _refused(planned: Planned, done: list[Repaired]) -> str:
    if not planned.cause.startswith(_UNASKED):
        return "its cause asks for a decision"
    last = next((r for r in done if r.partition == planned.partition), None)
    if last and last.verdict == "DIFFERENT":
        return f"a repair at {last.at:%Y-%m-%dT%H:%M:%SZ} did not help"
    return ""


def run(
    session: Session, name: str, span: Range | None = None, *, unasked: bool = False
) -> Iterator[Repaired]:
    """Rewrites one partition after the other by its batch run, reconciles it again, and yields the verdict.

    It ends at the first that is still DIFFERENT: its certificate names the rows. Raises JobError,
    RangeError (also if lost rows have no input any more: a batch run would replace them by fewer).
    """
    table = session.catalog.table(name)
    with publishing(session.settings, table):
        for planned in plan(session, name, span, unasked=unasked):
            if planned.refused:
                continue
            whole = partition_range(planned.partition, table.partition_by)
            # it is not known yet whether the input still gives the lost rows
            if planned.cause.startswith(diagnosis.LOST):
                planning.replaceable(session, table, [planned.partition])
            commit = compute.backfill(session, table, whole)
            after = reconciliation.reconcile(session, table, whole)
            repaired = Repaired(
                name,
                planned.partition,
                planned.rows,
                planned.cause,
                commit.version,
                after.verdict,
                datetime.now(UTC),
            )
            _notes(session.settings, table).append(repaired)
            yield repaired
            if after.verdict == "DIFFERENT":
                return


def repairs(settings: Settings, table: Table) -> Iterator[Repaired]:
    """Returns the repairs of a table, the latest first."""
    return _notes(settings, table).newest_first()


def _notes(settings: Settings, table: Table) -> Notes[Repaired]:
    return Notes(layout.note(settings, table, "repairs.jsonl"), partial(typed, Repaired))
