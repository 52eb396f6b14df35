"""The technical column `_key`: 16 bytes that stand for the key of a row, by which it is found.

They are the first half of SHA-256 over a text that has the length before each value of the key, so
that equal bytes mean equal keys. Spark computes them with the rows (`column`). A point read
computes the same without Spark (`of_text`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from lakehouse.declare.columns import quoted
from lakehouse.errors import RangeError
from lakehouse.storage.delta.json_texts import json_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

KEY = "_key"
_NESTED = ("struct", "array", "map")
_FRACTIONS = ("float", "double")
_WHOLE = ("byte", "short", "integer", "long")


def keyed(rows: "DataFrame", keys: Sequence[str]) -> "DataFrame":
    """Returns the rows with their `_key` as the last column."""
    return rows.drop(KEY).withColumn(KEY, column(rows.schema, keys))


def column(schema: "StructType", keys: Sequence[str]) -> "Column":
    """Returns the `_key` of rows of that schema, as an expression of Spark's."""
    from pyspark.sql import functions as F

    texts = F.concat(*(_text(name, schema[name].dataType) for name in keys))
    return F.unhex(F.substring(F.sha2(texts.cast("binary"), 256), 1, 32))


def _text(name: str, of: "DataType") -> "Column":
    from pyspark.sql import functions as F

    value, kind = _as_grouped(F.col(quoted(name)), of), of.typeName()
    shown = json_of(F.struct(value.alias(name)), of) if kind in _NESTED else value.cast("string")
    encoded = F.concat(F.lit("v"), F.octet_length(shown).cast("string"), F.lit(":"), shown)
    return F.when(value.isNull(), F.lit("n")).otherwise(encoded)


def _as_grouped(value: "Column", of: "DataType") -> "Column":
    """Returns the value with 0.0 in place of each -0.0 in it: Spark groups by both as one key."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if not any(f'"{each}"' in of.json() for each in _FRACTIONS):
        return value
    if isinstance(of, ArrayType):
        return F.transform(value, lambda each: _as_grouped(each, of.elementType))
    if isinstance(of, MapType):  # Spark does so by itself for the keys of maps
        return F.transform_values(value, lambda _, each: _as_grouped(each, of.valueType))
    if isinstance(of, StructType):
        parts = (_as_grouped(value[each.name], each.dataType).alias(each.name) for each in of)
        return F.when(value.isNotNull(), F.struct(*parts))
    if of.typeName() in _FRACTIONS:
        return F.when(value == 0, F.lit(0).cast(of)).otherwise(value)
    return value


def of_text(table: str, types: Mapping[str, str], values: Sequence[str | None]) -> bytes:
    """Returns the `_key` of a key given as text, None for null.

    `types`: the columns of the key, and their types as Delta names them.

    Raises RangeError for another number of values, or for a value that is not of its column's type.
    """
    if len(values) != len(types):
        raise RangeError(
            f"table={table}, values={len(values)}: its key is {', '.join(types)}; give a value for each of these, in this order"
        )
    encoded = (
        _text_bytes(table, name, kind, value)
        for (name, kind), value in zip(types.items(), values, strict=True)
    )
    return hashlib.sha256(b"".join(encoded)).digest()[:16]


def _text_bytes(table: str, name: str, kind: str, value: str | None) -> bytes:
    if value is None:
        return b"n"
    shown = _shown(table, name, kind, value).encode()
    return b"v%d:%b" % (len(shown), shown)


def _shown(table: str, name: str, kind: str, value: str) -> str:
    """Returns the value as Spark shows one of that type."""
    try:
        if kind == "string":
            return value
        if kind in _WHOLE:
            return str(int(value))
        if kind == "boolean" and value.lower() in ("true", "false"):
            return value.lower()
        if kind == "date":
            return str(date.fromisoformat(value))
        if kind in ("timestamp", "timestamp_ntz"):
            return _instant(value, with_zone=kind == "timestamp")
        if kind.startswith("decimal"):
            scale = int(kind.rstrip(")").partition(",")[2])
            return f"{Decimal(value).quantize(Decimal(1).scaleb(-scale)):f}"
    except (ValueError, InvalidOperation):
        pass
    else:
        raise RangeError(
            f"table={table}, {name}={value!r}: a value of the type {kind} is not found by its text; use `lakehouse query`"
            if kind != "boolean"
            else f"table={table}, {name}={value!r}: the column is a boolean; write true or false"
        )
    raise RangeError(
        f"table={table}, {name}={value!r}: the column is a {kind}; write the value as `lakehouse query` shows it"
    )


def _instant(value: str, *, with_zone: bool) -> str:
    from datetime import UTC

    instant = datetime.fromisoformat(value)
    if instant.tzinfo is not None:
        if not with_zone:
            raise ValueError(value)
        instant = instant.astimezone(UTC)
    fraction = f".{instant.microsecond:06}".rstrip("0") if instant.microsecond else ""
    return f"{instant:%Y-%m-%d %H:%M:%S}{fraction}"
