"""The upgrade: fills the other version of a table beside it, up to the present, and compares it with the table."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from batch_jobs import backfill, maintain
from batch_jobs.diff import by_partition
from batch_jobs.planning import Backfill
from batch_jobs.side import compared_columns, pairing
from lakehouse import ranges
from lakehouse.batch import late_merge
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.ranges import BEGINNING, PARTITION_LENGTHS, Range, partition_range
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import full_disk
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import comparisons
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.log.commits import Commit
from lakehouse.storage.log.comparisons import Compared
from lakehouse.storage.session import Session
from lakehouse.storage.versions import read_holds, upgrades
from lakehouse.storage.versions.upgrades import Upgrade
from lakehouse.stream import beside
from lakehouse.transform import creation

_EXAMPLES = 20
_AS_IT_WAS = "the table is as it was, for its readers and its job"
_OF_A_PARTITION = 3  # examples that are kept of a partition


@contextmanager
def alone(lakehouse: Lakehouse, table: Table) -> Iterator[None]:
    """Holds the lock of the table's upgrade; a full disk is reported with the name of the version beside the table."""
    what, stands = f"the version beside {table.name}", lambda: _AS_IT_WAS
    with (
        full_disk.named(lakehouse.settings, what, stands),
        upgrades.alone(lakehouse.settings, table),
    ):
        yield


def plan(session: Session, table_name: str) -> Backfill | None:
    """Sets the instant at which the other version's batch run ends and its stream begins; returns the plan of that run.

    Returns None without history before that, or if it was filled. Raises UnknownTable, JobError, RangeError.
    """
    table = session.catalog.table(table_name)
    other = upgrades.begin(session, table)
    beside_session = replace(session, settings=other)
    upgrade = upgrades.upgrade(session.settings, table)
    if upgrade and upgrade.state != "filling":
        return None
    inputs = session.catalog.timed_inputs(table)
    if len(inputs) == 1:
        return backfill.begin(beside_session, table_name)
    for each in inputs:  # there is no handover: the stream reads all of their logs
        if delta_log.oldest(session.path(each)) > 0:
            raise JobError(
                f"table={table.name}, input={each.name}: its log does not go back to its beginning, and a table of several "
                "inputs is filled from all that their logs have; declare the changed table under another name"
            )
    creation.create(beside_session, table)
    return None


def fill(session: Session, table_name: str, planned: Backfill | None) -> Iterator[Commit]:
    """Fills the other version up to the present. A fill that was cut short continues where it was.

    The version also follows rewrites of its inputs behind its frontier, and is compacted as any table.
    """
    table = session.catalog.table(table_name)
    beside_session = replace(session, settings=upgrades.beside(session.settings, table))
    with read_holds.under_way(session.settings):
        if planned:
            yield from backfill.run(beside_session, planned)
        with publishing(beside_session.settings, table):
            beside.catch_up(session, table)
        if table.late == "update":
            with publishing(beside_session.settings, table):
                yield from late_merge.update(beside_session, table)
        else:
            yield from backfill.followed(beside_session, table)
        for _ in maintain.run(beside_session, table.name):
            pass


def compare(
    session: Session, table_name: str, may_differ: Range | None
) -> tuple[Upgrade, list[Compared]]:
    """Compares what both versions have closed, notes the result, and returns it with all partitions that were compared.

    A partition that was compared before, and has the same files, is not read again.

    `may_differ`: if a row differs outside of this range, the version beside cannot be promoted.
    """
    table = session.catalog.table(table_name)
    beside_session = replace(session, settings=upgrades.beside(session.settings, table))
    with read_holds.under_way(session.settings):
        compared = _compared(session, beside_session, table)
    differing = [partition for partition in compared if partition.differs]
    length = table.partition_by
    outside = [p for p in differing if may_differ and not may_differ.covers(p.partition, length)]
    refused = ""
    if outside:
        first = outside[0]
        refused = (
            f"rows differ in {first.partition} (rows before {first.rows_before}, after {first.rows_after}) and "
            f"{len(outside) - 1} more partitions outside of {may_differ}, in which alone they may"
        )
    summary = {
        "partitions": len(compared),
        "differing": len(differing),
        "rows_before": sum(each.rows_before for each in compared),
        "rows_after": sum(each.rows_after for each in compared),
        "examples": [e for each in compared for e in each.examples][:_EXAMPLES],
    }
    upgrade = upgrades.note_compared(session.settings, table, summary, may_differ, refused)
    return upgrade, compared


def _compared(session: Session, other: Session, table: Table) -> list[Compared]:
    """Returns all closed partitions with rows. Those whose files have changed since their last comparison are compared now."""
    closed = min(frontier(of.settings, table) or BEGINNING for of in (session, other))
    ahead = ranges.floor(closed, PARTITION_LENGTHS[table.partition_by])
    all_noted = comparisons.noted(session.settings, table)
    behind = [k for k in all_noted if partition_range(k, table.partition_by).start < ahead]
    known = {key: all_noted[key] for key in behind}
    # before rows are read: what is rewritten meanwhile is compared once more
    files = dict.fromkeys(known, "") | comparisons.files_of((session, other), table, ahead)
    due = sorted(key for key in files if key not in known or known[key].files != files[key])
    if due:
        by_rows = _of_rows(session, other, table, due)
        compared = [replace(each, files=files[each.partition]) for each in by_rows]
        comparisons.note(session.settings, table, compared)
        known |= {each.partition: each for each in compared}
    return [known[key] for key in sorted(known) if known[key].rows_before or known[key].rows_after]


def _of_rows(
    session: Session, other: Session, table: Table, partitions: Sequence[str]
) -> list[Compared]:
    """Compares these partitions of both versions by checksum, and row by row where the checksums differ."""
    sides = [_rows(of, table, partitions) for of in (session, other)]
    types = {field.name: field.dataType for field in sides[1].schema}
    common = [field.name for field in sides[0].schema if types.get(field.name) == field.dataType]
    before, after = (rows.select(*common) for rows in sides)
    compared = by_partition(before, after, pairing(table), table.tolerance, _OF_A_PARTITION)
    return [compared.get(key, Compared(key)) for key in partitions]


def _rows(session: Session, table: Table, partitions: Sequence[str]) -> DataFrame:
    """Returns the rows of these partitions with the columns of the new declaration that are compared."""
    spans = ranges.joined(partition_range(key, table.partition_by) for key in partitions)
    rows = session.spanning(table, Range(spans[0].start, spans[-1].end), within=spans)
    columns = compared_columns(rows, table, session.catalog, table.partition_by)
    return rows.select(*columns).where(F.col(PARTITION).isin(list(partitions)))
