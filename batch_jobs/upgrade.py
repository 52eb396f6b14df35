"""The other version of a table is filled beside it, up to the present, and compared with what the table holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from batch_jobs import bootstrap
from batch_jobs.planning import Backfill
from lakehouse import ranges
from lakehouse.declare.columns import ARRIVAL, PARTITION, WINDOW
from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.ranges import EPOCH, PARTITION_LENGTHS, Range, partition_range
from lakehouse.storage import delta_log, read_holds, upgrades
from lakehouse.storage.commit_log import frontier
from lakehouse.storage.commits import Commit
from lakehouse.storage.digest import EMPTY, NONE, differences, digests_by, reconciled_columns
from lakehouse.storage.publish_lock import publishing
from lakehouse.storage.session import Session
from lakehouse.storage.upgrades import Upgrade
from lakehouse.stream import beside
from lakehouse.transform import creation, lateness

_EXAMPLES = 20
_ARRIVED = "arrived as"


@dataclass(frozen=True, slots=True)
class Compared:
    """The rows of both versions in one partition of the new one; how many are in one alone, or with other values."""

    partition: str
    rows_before: int
    rows_after: int
    missing: int
    extra: int
    changed: int

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.extra or self.changed)


def plan(session: Session, table_name: str) -> Backfill | None:
    """Sets where the batch run of the other version ends and its stream begins, and says what that batch run does.

    None if there is no history behind it. Raises UnknownTable, JobError, RangeError.
    """
    table = session.catalog.table(table_name)
    other = upgrades.begin(session, table)
    beside_session = replace(session, settings=other)
    inputs = session.catalog.timed_inputs(table)
    if len(inputs) == 1:
        return bootstrap.plan(beside_session, table_name)
    for each in inputs:  # there is no handover: the stream reads all that their logs have
        if delta_log.oldest(session.path(each)) > 0:
            raise JobError(
                f"table={table.name}, input={each.name}: its log does not go back to its beginning, and a table of several "
                "inputs is filled from all that their logs have; declare the changed table under another name"
            )
    creation.create(beside_session, table)
    return None


def fill(session: Session, table_name: str, planned: Backfill | None) -> Iterator[Commit]:
    """Fills the other version up to the present. One that was cut short goes on where it was."""
    table = session.catalog.table(table_name)
    beside_session = replace(session, settings=upgrades.beside(session.settings, table))
    with read_holds.under_way(session.settings):
        if planned:
            yield from bootstrap.run(beside_session, planned)
        with publishing(beside_session.settings, table):
            beside.catch_up(session, table)


def compare(
    session: Session, table_name: str, may_differ: Range | None
) -> tuple[Upgrade, list[Compared]]:
    """Compares what both versions have closed, and notes the result.

    `may_differ`: outside of this range no row may; then the version beside cannot be promoted.
    """
    table = session.catalog.table(table_name)
    beside_session = replace(session, settings=upgrades.beside(session.settings, table))
    compared, examples = _compared(session, beside_session, table)
    outside = [
        each
        for each in compared
        if each.differs and may_differ and not _within(each.partition, table, may_differ)
    ]
    refused = (
        f"rows differ in {outside[0].partition} (rows before {outside[0].rows_before}, after {outside[0].rows_after}) and "
        f"{len(outside) - 1} more partitions outside of {may_differ}, in which alone they may"
        if outside
        else ""
    )
    summary = {
        "partitions": len(compared),
        "differing": sum(each.differs for each in compared),
        "rows_before": sum(each.rows_before for each in compared),
        "rows_after": sum(each.rows_after for each in compared),
        "examples": examples,
    }
    return upgrades.note(
        session.settings, table, "filled", compared=summary, refused=refused
    ), compared


def _within(partition: str, table: Table, span: Range) -> bool:
    whole = partition_range(partition, table.partition_by)
    return span.start <= whole.start and whole.end <= span.end


def _compared(session: Session, there: Session, table: Table) -> tuple[list[Compared], list[str]]:
    closed = min(frontier(of.settings, table) or EPOCH for of in (session, there))
    first = ranges.floor(closed, PARTITION_LENGTHS[table.partition_by])
    ahead = first.strftime(ranges.partition_format(table.partition_by))
    sides = [_rows(of, table).where(F.col(PARTITION) < ahead) for of in (session, there)]
    common = [
        field.name
        for field in sides[0].schema
        if any(field.name == o.name and field.dataType == o.dataType for o in sides[1].schema)
    ]
    before, after = (rows.select(*common) for rows in sides)
    ours, theirs = digests_by((before, F.col(PARTITION)), (after, F.col(PARTITION)))
    keys: Sequence[str] = [WINDOW, *table.keys] if table.window else [_ARRIVED]
    unequal = sorted(k for k in ours | theirs if ours.get(k, EMPTY) != theirs.get(k, EMPTY))
    differ = F.col(PARTITION).isin(unequal)
    differing = (
        differences(
            before.where(differ),
            after.where(differ),
            keys,
            PARTITION,
            table.tolerance,
            _EXAMPLES,
            ("before", "after"),
        )
        if unequal
        else {}
    )
    compared = [
        Compared(
            key,
            ours.get(key, EMPTY).rows,
            theirs.get(key, EMPTY).rows,
            *((d := differing.get(key, NONE)).missing, d.extra, d.changed),
        )
        for key in sorted(ours | theirs)
    ]
    return compared, [e for each in differing.values() for e in each.examples][:_EXAMPLES]


def _rows(session: Session, table: Table) -> DataFrame:
    """The rows with what is compared of them, by the partitions of the new declaration."""
    rows = session.read(table)
    moment = lateness.instant_of(table.window, session.catalog.event_time(table))
    position = (F.col(f"{ARRIVAL}.{name}") for name in ("topic", "partition", "offset"))
    arrived = [F.concat_ws(":", *position).alias(_ARRIVED)] if not table.window else []
    return rows.select(
        *reconciled_columns(rows),
        *arrived,
        lateness.partition_of(moment, table.partition_by).alias(PARTITION),
    )
