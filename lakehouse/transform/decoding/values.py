"""Texts as values of declared types, read by our own classes in Spark's JVM (`runtime/java`): exactly, or not at all.

The rules are one table for all formats: docs/reference/values.md.
"""

from collections.abc import Sequence
from typing import Any, cast

from pyspark import SparkContext
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakehouse.declare.columns import helper
from lakehouse.declare.inputs.sources import EMPTY
from lakehouse.errors import DeclarationError

_OF_TEXT = (
    T.StringType,
    T.BooleanType,
    T.NumericType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)
CORRUPT = helper("corrupt")
OBJECT = helper("object")
PLACE = helper("place")
NO_JSON = "not a JSON object of the declared types"
TOKEN = T.StructType(
    [T.StructField(helper("token"), T.StringType()), T.StructField(helper("text"), T.StringType())]
)
"""A type of JSON that takes any value: its kind (number, text, boolean, object, array), and its text as it was sent."""


def of_ddl(ddl: str) -> T.StructType:
    """Returns the columns of Spark DDL."""
    return cast(T.StructType, T.StructType.fromDDL(ddl))


def row(format: str, columns: T.StructType, value: Column, nulls: Sequence[str] = EMPTY) -> Column:
    """Returns the struct of `columns` that a binary value holds: an object of JSON or a line of CSV.

    The last column is a text: the problem of a bad value. `nulls` are the fields of CSV that are null.
    """
    return Column(_reader().asRow(format, columns.json(), [*nulls], value._jc))


def record(
    format: str, columns: T.StructType, value: Column, nulls: Sequence[str] = EMPTY
) -> Column:
    """Returns the struct of the columns and, in CORRUPT, the problem of a bad value."""
    return row(format, _with_reason(columns), value, nulls)


def records(columns: T.StructType, value: Column) -> Column:
    """Returns an array of such structs for a binary value of JSON objects one after another.

    Each has its own bytes in OBJECT and its place in the value, from 0, in PLACE. A blank value gives one null.
    """
    row_type = _with_reason(columns).add(OBJECT, T.BinaryType()).add(PLACE, T.IntegerType())
    parsed = Column(_reader().asRows(row_type.json(), value._jc))
    return F.coalesce(parsed, F.array(F.lit(None).cast(row_type)))


def _with_reason(columns: T.StructType) -> T.StructType:
    return T.StructType([*columns.fields]).toNullable().add(CORRUPT, "string")


def check(where: str, schema: T.StructType, format: str) -> None:
    """Raises DeclarationError for a column of a type that no value can have."""
    for field in schema:
        if wrong := unread(field.dataType, nested=format != "csv"):
            raise DeclarationError(
                f"{where}, column={field.name}, type={wrong.simpleString()}: no value of {format} is read as that type; "
                "declare the column as STRING, which gives the value as it was sent"
            )


def exact(type_: T.DataType, text: Column, format: str = "text") -> Column:
    """Returns a text as a value of a type, read as a field of CSV or as JSON; null if it is none."""
    return Column(_reader().asValue(format, type_.json(), text._jc))


def unread(type_: T.DataType, *, nested: bool = True) -> T.DataType | None:
    """Returns the part of a type that cannot be read; None if all can. `nested` is True if values may hold values."""
    if isinstance(type_, T.StructType | T.ArrayType | T.MapType | T.VariantType) and not nested:
        return type_
    if isinstance(type_, T.MapType) and not isinstance(type_.keyType, T.StringType):
        return type_
    if parts := _parts(type_):
        return next(filter(None, map(unread, parts)), None)
    return None if isinstance(type_, (*_OF_TEXT, T.VariantType, T.StructType)) else type_


def _parts(type_: T.DataType) -> list[T.DataType]:
    if isinstance(type_, T.StructType):
        return [field.dataType for field in type_]
    if isinstance(type_, T.ArrayType):
        return [type_.elementType]
    return [type_.keyType, type_.valueType] if isinstance(type_, T.MapType) else []


def _reader() -> Any:
    return java_class("Reader")


def java_class(name: str) -> Any:
    """Returns a class of `runtime/java` in Spark's JVM."""
    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None
    return getattr(context._jvm.lakehouse.values, name)
