"""Checks of a function's result against its kind of table: refused with the remedy, before anything runs."""

from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame

from lakehouse.declare.columns import ARRIVAL, INGESTION, WINDOW
from lakehouse.declare.kinds import Kind
from lakehouse.declare.remarks import check_all, refuse
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.transform import versions
from lakehouse.transform.analysis import determinism, shapes

_FEW_VALUES = ("string", "boolean", "date", "tinyint", "smallint", "int", "bigint")


def check_input(table: Table, name: str, rows: DataFrame) -> None:
    """Raises DeclarationError if the driving input of a window table has a column with the name of the window column."""
    if table.window and WINDOW in rows.columns:
        raise DeclarationError(
            f"table={table.name}, input={name}, column={WINDOW}: the library gives the input of a window table a "
            "column of that name; rename its own in a row table between, and read that"
        )


def check(
    table: Table,
    rows: object,
    inputs: Mapping[str, DataFrame],
    kept: set[str],
    moment: str,
) -> None:
    """Raises DeclarationError unless `rows` are a DataFrame with the required columns, and none of the library's own.

    `kept` are technical columns that must come through, `moment` is the column of event time.
    """
    if not isinstance(rows, DataFrame):
        raise DeclarationError(
            f"table={table.name}: its function returned {rows!r}; return a DataFrame"
        )
    where = f"table={table.name}, columns={rows.columns}"
    checks = [lambda: refuse(_wrong_columns(table, where, rows, kept, moment))]
    if table.kind.reads_sources:
        checks.append(lambda: determinism.check_keeps_all(where, rows, inputs))
    if table.window and table.window.kind == "session":
        checks.append(lambda: determinism.check_sessions(where, rows))
    check_all(*checks)


def _wrong_columns(
    table: Table, where: str, rows: DataFrame, kept: set[str], moment: str
) -> Iterator[str]:
    kind, types = table.kind, dict(rows.dtypes)
    if lost := kept - types.keys():
        yield f"{where}{_lost(kind, rows, lost)}"
    by_ingestion = kind.reads_sources and moment == INGESTION
    required = {moment} if kind.keeps_event_time and not by_ingestion else set()
    required |= {WINDOW, *table.keys} if kind.is_windowed else set(table.keys)
    if missing := required - types.keys():
        yield f"{where}: the declaration names {', '.join(sorted(missing))}; the function must return it"
    if table.marker and types.get(table.marker) != "boolean":
        yield (
            f"{where}, marker={table.marker!r}: {types.get(table.marker, 'no such column')}; the function returns a BOOLEAN "
            "column of that name, true of the rows that say that time has come to their event time"
        )
    if table.watermark_by and types.get(table.watermark_by) not in _FEW_VALUES:
        yield (
            f"{where}, watermark_by={table.watermark_by!r}: {types.get(table.watermark_by, 'no such column')}; the function "
            f"returns a column of that name, of one of the types {', '.join(_FEW_VALUES)}, by whose values rows hold the "
            "watermark back; cast it"
        )
    added = {INGESTION} if by_ingestion else set(versions.VALID) if kind.keeps_versions else set()
    if own := [name for name in rows.columns if name.lower() in added]:
        yield f"{where}: {', '.join(own)} is added by the library; leave it to it, or rename yours"
    if kind.is_report and WINDOW in types:
        yield (
            f"{where}: the library adds the column {WINDOW}, which is the partition, to a report; rename yours, or select "
            f"{WINDOW}.start or {WINDOW}.end by another name"
        )
    if kind.is_of_several_rows and ARRIVAL in types:
        yield f"{where}{_of_single_rows(table, kind)}"
    if unknown := [name for name in rows.columns if name.startswith("_") and name not in kept]:
        yield f"{where}: a leading '_' marks technical columns; rename {', '.join(unknown)}"


def _lost(kind: Kind, rows: DataFrame, lost: set[str]) -> str:
    if shapes.groups(rows):
        return (
            f", operators=Aggregate: a {kind} table has a row for each row that it reads; for one of several rows "
            "declare a @window_table and group by the window, or a @keyed_table; what is grouped by _arrival is of one row"
        )
    return (
        f": a row-preserving table keeps {', '.join(sorted(lost))}, by which its rows are called late or quarantined; use "
        "withColumn and drop, or add the column to select"
    )


def _of_single_rows(table: Table, kind: Kind) -> str:
    by = (*([WINDOW] if kind.is_windowed else []), *table.keys)
    remedy = f"or rank the rows of each {'window' if kind.is_windowed else 'key'} and drop it"
    return (
        f": {ARRIVAL} belongs to a single row, and a {kind} table has a row for each {', '.join(by)}; write groupBy(...) by "
        f"these and agg(...), {remedy} (the latest row of a group is max_by(..., event time))"
    )
