"""Instants and dates outside the years 1 to 9999 in Spark's columns: the row is quarantined, or its table refuses it."""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakehouse.declare.columns import quoted
from lakehouse.storage.delta.python_years import RULE

REMEDY = "correct it in the table's function, or leave its row out"
_LIMITS: dict[type[T.DataType], tuple[str, str]] = {
    T.DateType: ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    T.TimestampType: ("TIMESTAMP'0001-01-01 00:00:00Z'", "TIMESTAMP'9999-12-31 23:59:59.999999Z'"),
    T.TimestampNTZType: (
        "TIMESTAMP_NTZ'0001-01-01 00:00:00'",
        "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
    ),
}


def reason(columns: T.StructType) -> Column:
    """Returns why a row is quarantined; null for a row whose instants and dates are all within."""
    reasons = [
        F.when(beyond, F.lit(f"outside the years 1 to 9999: {name}"))
        for name, beyond in _by_column(columns)
    ]
    return F.coalesce(*reasons, F.lit(None).cast("string"))


def is_beyond(column: Column, kind: T.DataType) -> Column | None:
    """Returns a condition that a value has an instant or date beyond, at any depth; None for a type without any."""
    if type(kind) in _LIMITS:
        least, greatest = map(F.expr, _LIMITS[type(kind)])
        return (column < least) | (column > greatest)
    if isinstance(kind, T.StructType):
        fields = (is_beyond(column.getField(f.name), f.dataType) for f in kind)
        parts = [field for field in fields if field is not None]
        return reduce(or_, (F.coalesce(part, F.lit(False)) for part in parts)) if parts else None
    if isinstance(kind, T.ArrayType):
        return _any(column, kind.elementType)
    if isinstance(kind, T.MapType):
        entry = T.StructType().add("key", kind.keyType).add("value", kind.valueType)
        return _any(F.map_entries(column), entry)
    return None


def refused(rows: DataFrame, table: str, keys: Sequence[str]) -> DataFrame:
    """Returns the rows of a table without a quarantine; a row with such a value ends the query with an error that names it."""
    key = F.to_json(F.struct(*map(quoted, keys)))
    checked = {}
    for name, beyond in _by_column(rows.schema):
        rule = F.lit(f", column={name}: {RULE}; {REMEDY}")
        text = F.concat(F.lit(f"table={table}, row="), key, rule)
        checked[name] = F.when(beyond, F.raise_error(text)).otherwise(F.col(quoted(name)))
    return rows.withColumns(checked) if checked else rows


def _by_column(columns: T.StructType) -> Iterator[tuple[str, Column]]:
    """Yields each column that may hold such a value, with the condition that it does; the library's own hold none."""
    for field in columns:
        if field.name.startswith("_"):
            continue
        beyond = is_beyond(F.col(quoted(field.name)), field.dataType)
        if beyond is not None:
            yield field.name, beyond


def _any(elements: Column, kind: T.DataType) -> Column | None:
    if is_beyond(F.lit(None), kind) is None:
        return None

    def beyond(element: Column) -> Column:
        condition = is_beyond(element, kind)
        assert condition is not None, kind
        return F.coalesce(condition, F.lit(False))

    return F.exists(elements, beyond)
