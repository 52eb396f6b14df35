"""Makes a table, its quarantine and its early results as its plan needs them, before anything is written to them."""

import logging
from collections.abc import Sequence

from pyspark.sql.types import StructType

from lakehouse.declare.columns import (
    ARRIVAL,
    ARRIVAL_TYPE,
    HEADERS,
    HEADERS_TYPE,
    ORIGIN,
    QUARANTINE,
    WINDOW,
)
from lakehouse.declare.lookups import Lookup
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.storage.delta import delta_log, delta_writer, table_creation
from lakehouse.storage.delta.table_creation import StoredTable
from lakehouse.storage.disk.layout import Side
from lakehouse.storage.keyed import lookup_answers
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import checkpoints, declared_state, table_state
from lakehouse.storage.position.checkpoints import Standing
from lakehouse.storage.session import Session, nullable
from lakehouse.transform import keeping, lookups
from lakehouse.transform.analysis import validation
from lakehouse.transform.decoding import values
from lakehouse.transform.plan import Plan, plan_of

_log = logging.getLogger(__name__)


def create(session: Session, table: Table, *, grows: bool = False) -> None:
    """Makes the table and its quarantine if they do not exist.

    If it `grows`, further declared columns are added, with nulls in the existing rows, and a table that has read nothing
    gets the declared ones. Otherwise, or if other columns differ, it raises DeclarationError.

    A function by which stream and batch may differ is refused here, before it has run.
    """
    step = plan_of(session, table)
    declared = step.schema
    validation.check(session, table)
    warning = validation.unended(session, table) if grows else ""
    if warning:
        _log.warning(warning)
    upserted = table.kind.is_upserted
    partitioned = table.kind.has_partitions
    if partitioned:
        refilled = (
            "; restore the folder"
            if table.kind.reads_sources
            else "; a backfill quarantines them again"
        )
        _say_if_gone(session, table, "quarantine", "the rows that it held", refilled)
    keys = keeping.key_columns(step)
    properties = table_creation.found_by(keys) if upserted else table_creation.PLAIN
    path = session.path(table)
    stored = table_creation.create(
        path, declared, partitioned, _searched(session, table), properties
    )
    # a batch run leaves the stream of a table with ranges where it is
    standing = checkpoints.standing(session.settings, table) if grows or upserted else None
    note = table_state.noted(session.settings, table) if grows else None
    # any declaration is right before the stream has read a row
    begins = grows and not (standing and table_state.binds(session, table, note, standing))
    # with rows, only the note of its declaration may be lost
    fresh = begins and not delta_log.files(path)
    if fresh:
        _fit_kind(table, stored, partitioned)
    if upserted and grows and table_creation.is_found_otherwise(stored, keys):
        standing = _renewed(session, table, keys)
    # otherwise it gets the declared columns and keys with its first rows
    stays = not (upserted and standing and standing.begins_whole)
    if upserted and stays:
        stored = table_creation.prepare_keyed(stored, keys)
    if partitioned:
        _create_quarantine(session, step, grows, begins)
    if table.lookup:
        _create_answers(session, step, table.lookup)
    if fresh and not upserted:
        delta_writer.redeclare(path, declared)
    elif stays and not fresh:
        _fit_columns(session, table, stored, declared, grows)
    if table.early_results:
        early = session.path(table, "early")
        stored = table_creation.create(early, declared, False, "", table_creation.PASSING)
        if fresh:
            delta_writer.redeclare(early, declared)
        else:
            _fit_columns(session, table, stored, declared, grows)


def _renewed(lakehouse: Lakehouse, table: Table, keys: Sequence[str]) -> Standing:
    """Has a keyed table whose rows are found by other columns computed whole, and returns its position."""
    # written by another version of this library: the next row of a key would stand beside the present one
    why = f"its rows are to be found by {', '.join(keys)}"
    checkpoints.renew(lakehouse.settings, table, why)
    _log.warning(f"table={table.name}: {why}, and were by other columns, so it is computed whole")
    return checkpoints.standing(lakehouse.settings, table)


def _create_quarantine(session: Session, step: Plan, grows: bool, begins: bool) -> None:
    """Makes the quarantine of a table, or adds columns that it lacks if it `grows`."""
    table = step.table
    types = {field.name: field.dataType.simpleString() for field in step.schema}
    ddl = QUARANTINE.format(types.get(ARRIVAL, ARRIVAL_TYPE))
    if HEADERS in step.further:
        ddl += f", {HEADERS} {HEADERS_TYPE}"
    columns = values.of_ddl(ddl)
    path = session.path(table, "quarantine")
    stored = table_creation.create(path, columns, True, "reason")
    if begins and not delta_log.files(path):
        delta_writer.redeclare(path, columns)
    else:
        _fit_columns(session, table, stored, columns, grows)


def _create_answers(session: Session, step: Plan, lookup: Lookup) -> None:
    """Makes the table of a lookup's answers, and reports on standard error if an earlier one has gone."""
    table = step.table
    path = session.path(table, "answers")
    refilled = (
        ", and a backfill asks again; restore the folder if the service may answer otherwise now"
    )
    _say_if_gone(session, table, "answers", "the recorded answers", refilled)
    asking = step.timed[step.driving].placed(step.no_rows(step.driving))
    key = lookups.key_of(table, lookup, asking)
    columns = lookup_answers.columns(key, nullable(values.of_ddl(lookup.schema)))
    stored = table_creation.create(path, columns, True, "")
    _check_columns(session, table, stored, columns)


def _fit_kind(table: Table, stored: StoredTable, partitioned: bool) -> None:
    """Raises DeclarationError if the table on disk has partitions and the declared one not, or the reverse."""
    columns = stored.partitions
    if bool(columns) != partitioned:
        raise DeclarationError(
            f"table={table.name}, partitions={', '.join(columns) or 'none'}: another kind of table was declared under that name; "
            f"it has no row, so remove its folder {stored.path}, and the next start makes it again"
        )


def _fit_columns(
    lakehouse: Lakehouse, table: Table, stored: StoredTable, declared: StructType, grows: bool
) -> None:
    """Adds to the table on disk the columns that it lacks, if it grows. Raises DeclarationError if others differ."""
    names = stored.columns.names
    added = [f for f in declared if f.name not in names]
    common = StructType([f for f in declared if f.name in names])
    _check_columns(lakehouse, table, stored, common)
    if not added:
        return
    lacking = ", ".join(f.name for f in added)
    if not grows:
        raise DeclarationError(
            f"table={table.name}, columns={lacking}: the table on disk does not have them yet; `lakehouse stream restart "
            f"{table.pipeline}` under this code adds them, then run this again"
        )
    delta_writer.add_columns(stored.path, added)
    _log.warning(
        f"table={table.name}, columns={lacking}: the declaration has them besides those of the table on disk, so they were "
        "added; the rows that were there have nulls in them"
    )


def _check_columns(
    lakehouse: Lakehouse, table: Table, stored: StoredTable, declared: StructType
) -> None:
    """Raises DeclarationError if the table on disk has other columns."""
    # nullability within nested columns is left out: a plan over tables on disk knows less of it
    there = {f.name: f.dataType.simpleString() for f in stored.columns}
    expected = {f.name: f.dataType.simpleString() for f in declared}
    if changed := sorted(n for n in there | expected if there.get(n) != expected.get(n)):
        raise DeclarationError(
            f"table={stored.path.name}, columns={', '.join(changed)}: the table on disk has other columns or types than its "
            f"declaration, and only further columns can be added to it; {declared_state.of_other_columns(lakehouse, table)}"
        )


def _say_if_gone(lakehouse: Lakehouse, table: Table, side: Side, held: str, refilled: str) -> None:
    """Reports on standard error that a table has lost its quarantine or answers, which are made again, empty."""
    path = lakehouse.path(table, side)
    if delta_log.latest(lakehouse.path(table)) > 0 and delta_log.latest(path) < 0:
        _log.warning(
            f"table={table.name}, {side}={path}: the folder is gone, and {held} with it; an empty one is made{refilled}"
        )


def _searched(lakehouse: Lakehouse, table: Table) -> str:
    """Returns the columns whose least and greatest value each file records. Each costs CPU for every row."""
    if not table.kind.has_partitions:
        return ""
    # the origin shows the writer of a partition; an ingest table has one writer only
    instant = WINDOW if table.window else lakehouse.catalog.event_time(table)
    return instant if table.kind.reads_sources else f"{instant},{ORIGIN}"
