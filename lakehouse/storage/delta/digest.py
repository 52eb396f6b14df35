"""Checksums of sets of rows, and the differences between two of them.

A digest does not depend on order: it is the count of rows and two sums over salted 64-bit hashes of
each row. These are sums because an exclusive or cancels duplicates. A hash covers the values and which
of them are null, because xxhash64 ignores nulls. Equal digests mean equal multisets of rows (a chance
of about 2^-100 for an accident). Unequal digests only call for the comparison of rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import isclose, isnan
from operator import add
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lakehouse.declare.columns import helper, quoted
from lakehouse.storage.delta.json_texts import json_of

_SALTS = ("a", "b")
_GROUP, _ROW, _OURS, _EXPECTED, _ACTUAL = map(
    helper, ("group", "row", "ours", "expected", "actual")
)
_ENTRY = ["key", "value"]  # the fields of an entry of a map


@dataclass(frozen=True, slots=True)
class Digest:
    rows: int
    a: int
    b: int

    def __str__(self) -> str:
        return f"{self.rows}:{self.a:016x}{self.b:016x}"

    @classmethod
    def parsed(cls, text: str) -> "Digest":
        rows, _, sums = text.partition(":")
        return cls(int(rows), int(sums[:16], 16), int(sums[16:], 16))

    def __add__(self, other: "Digest") -> "Digest":
        """Returns the digest of both sets of rows together."""
        return Digest(
            self.rows + other.rows, (self.a + other.a) % 2**64, (self.b + other.b) % 2**64
        )


EMPTY = Digest(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Difference:
    """Counts of rows, by key: only in the batch result (missing), only in the table (extra), with other values (changed)."""

    missing: int
    extra: int
    changed: int
    examples: tuple[str, ...]

    @property
    def total(self) -> int:
        return self.missing + self.extra + self.changed


NONE = Difference(0, 0, 0, ())


def reconciled_columns(rows: DataFrame) -> list[str]:
    """Returns the columns that are compared: all but the technical ones, which start with `_`."""
    return sorted(c for c in rows.columns if not c.startswith("_"))


def digest(rows: DataFrame) -> Digest:
    """Returns the checksum of `rows`, technical columns left out."""
    return digests(rows)[0]


def digests(*sets: DataFrame) -> list[Digest]:
    """Returns the `digest` of each set of rows, by one query."""
    return [by_group.get(1, EMPTY) for by_group in digests_by(*((rows, F.lit(1)) for rows in sets))]


def digests_by(*sets: tuple[DataFrame, Column]) -> list[dict]:
    """Returns, for each set of rows, the digest of each value of its column; all these columns have one type.

    One query computes them, in one pass over each set.
    """
    tagged = (
        _hashed(rows, group).withColumn("_of", F.lit(n)) for n, (rows, group) in enumerate(sets)
    )
    by_set: list[dict] = [{} for _ in sets]
    for r in reduce(DataFrame.unionByName, tagged).collect():
        by_set[r["_of"]][r["_group"]] = Digest(
            r["n"], *(_joined(r[f"{s}0"], r[f"{s}1"]) for s in _SALTS)
        )
    return by_set


def row_hashes(rows: DataFrame) -> list[Column]:
    """Returns two 64-bit hashes of each row, the same for equal rows; technical columns are left out."""
    leaves = [
        leaf
        for name in reconciled_columns(rows)
        for leaf in _leaves(F.col(quoted(name)), rows.schema[name].dataType)
    ]
    values, flags = zip(*leaves, strict=True)
    return [F.xxhash64(F.lit(salt), *values, *_bits(flags)) for salt in _SALTS]


def _hashed(rows: DataFrame, group: Column) -> DataFrame:
    """Returns a row for each value of `group` (`_group`): the count, and the sums of hashes."""
    hashes = row_hashes(rows)
    # the two halves are summed apart: a sum of 64-bit values would overflow, one of decimals would
    # be slow
    halves = [
        F.sum(half).alias(f"{salt}{i}")
        for salt in _SALTS
        for i, half in enumerate(
            (F.shiftrightunsigned(salt, 32), F.col(salt).bitwiseAND(0xFFFFFFFF))
        )
    ]
    salted = rows.select(
        group.alias("_group"), *(h.alias(s) for h, s in zip(hashes, _SALTS, strict=True))
    )
    return salted.groupBy("_group").agg(F.count(F.lit(1)).alias("n"), *halves)


def _joined(high: int, low: int) -> int:
    return ((high << 32) + low) % 2**64


def _leaves(column: Column, kind: DataType) -> Iterator[tuple[Column, Column]]:
    """Yields two columns to hash for a column, and for each field of a struct: its value, and whether it is null."""
    value = column
    if isinstance(kind, StructType):
        yield F.lit(0), column.isNull()
        for field in kind:
            yield from _leaves(column.getField(field.name), field.dataType)
        return
    if isinstance(kind, DoubleType | FloatType):
        value = column + F.lit(0.0).cast(kind)  # -0.0 and 0.0 are the same value
    elif isinstance(kind, ArrayType | MapType):
        value = json_of(_compared(column, kind), kind, ignoreNullFields="false")
    yield value, column.isNull()


def _compared(column: Column, kind: DataType) -> Column:
    """Returns the column, with each map in it as an array of entries by key: a map has no order, and Spark compares none."""
    if not any(isinstance(each, MapType) for each in _within(kind)):
        return column
    if isinstance(kind, StructType):
        parts = (_compared(column[each.name], each.dataType).alias(each.name) for each in kind)
        return F.when(column.isNotNull(), F.struct(*parts))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: _compared(each, kind.elementType))
    assert isinstance(kind, MapType), kind
    of_values = kind.valueType
    entries = F.transform(
        F.map_entries(column),
        lambda each: F.struct(each["key"], _compared(each["value"], of_values).alias("value")),
    )
    return F.sort_array(entries)


def _within(kind: DataType) -> Iterator[DataType]:
    """Yields the type, and all types that it is made of."""
    yield kind
    parts: list[DataType] = []
    if isinstance(kind, StructType):
        parts = [each.dataType for each in kind]
    elif isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    for part in parts:
        yield from _within(part)


def _bits(flags: Sequence[Column]) -> list[Column]:
    """Returns the flags as bits of as few numbers as hold them, which are cheaper to hash than each flag by itself."""
    numbered = [flag.cast("bigint") * (1 << i % 63) for i, flag in enumerate(flags)]
    return [reduce(add, numbered[i : i + 63]) for i in range(0, len(numbered), 63)]


def differences(
    expected: DataFrame,
    actual: DataFrame,
    keys: Sequence[str],
    group: str,
    tolerance: float = 0.0,
    most: int = 20,
    names: tuple[str, str] = ("batch", "table"),
) -> dict[Any, Difference]:
    """Returns the rows that differ, for each value of the column `group` where any do, with up to `most` examples.

    Rows are compared as multisets and paired by `keys`. Doubles within the relative `tolerance` are
    the same. `names`: the names of the two sides in the examples.
    """
    columns = reconciled_columns(expected)
    keys = [k for k in keys if k in columns] or columns
    values = [c for c in columns if c not in keys]
    ours = F.col(_OURS)
    expected, actual = (
        rows.select(
            *(_compared(F.col(quoted(c)), rows.schema[c].dataType).alias(c) for c in columns),
            F.col(group).alias(_GROUP),
        )
        for rows in (expected, actual)
    )
    # tagged and grouped, not joined: both sides come from the same tables, so their columns would be
    # ambiguous in a join
    only_expected = _shown_alone(expected.exceptAll(actual), keys, values, ours=True)
    only_actual = _shown_alone(actual.exceptAll(expected), keys, values, ours=False)
    sides = {_EXPECTED: F.when(ours, F.col(_ROW)), _ACTUAL: F.when(~ours, F.col(_ROW))}
    lists = [F.sort_array(F.collect_list(rows)).alias(side) for side, rows in sides.items()]
    pairs = (
        only_expected.unionByName(only_actual)
        .groupBy(_GROUP, *map(quoted, keys))
        .agg(*lists)
        .persist()
    )
    try:
        by_group: dict[object, Difference] = {}
        for pair in pairs.toLocalIterator():
            by_group[pair[_GROUP]] = _counted(
                by_group.get(pair[_GROUP], NONE), pair, keys, tolerance, most, names
            )
        return {group: difference for group, difference in by_group.items() if difference.total}
    finally:
        pairs.unpersist()


def _shown_alone(
    rows: DataFrame, keys: Sequence[str], values: Sequence[str], *, ours: bool
) -> DataFrame:
    """Returns rows of one side, with instants and dates as text, because Python does not have all of them."""
    texts = {
        name: _with_texts(F.col(quoted(name)), rows.schema[name].dataType)
        for name in (*keys, *values)
    }
    return rows.withColumns(texts).select(
        _GROUP, *map(quoted, keys), _struct(values).alias(_ROW), F.lit(ours).alias(_OURS)
    )


def _with_texts(column: Column, kind: DataType) -> Column:
    """Returns the column, with each instant and date in it as text."""
    if isinstance(kind, TimestampType):
        seconds = F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss")
        fraction = F.date_format(column, ".SSSSSS")
        return F.concat(seconds, F.when(fraction == ".000000", "").otherwise(fraction), F.lit("Z"))
    if isinstance(kind, DateType | TimestampNTZType):
        return column.cast("string")
    if isinstance(kind, StructType):
        parts = (_with_texts(column[each.name], each.dataType).alias(each.name) for each in kind)
        return F.when(column.isNotNull(), F.struct(*parts))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: _with_texts(each, kind.elementType))
    return column


def _struct(values: Sequence[str]) -> Column:
    return F.struct(*map(quoted, values)) if values else F.struct(F.lit(1).alias("row"))


def _counted(
    before: Difference,
    pair: Row,
    keys: Sequence[str],
    tolerance: float,
    most: int,
    names: tuple[str, str],
) -> Difference:
    """Returns `before`, with the difference between the rows of one more key added."""
    expected, actual = pair[_EXPECTED] or [], pair[_ACTUAL] or []
    same = min(len(expected), len(actual))
    far = sum(not _close(e, a, tolerance) for e, a in zip(expected, actual, strict=False))
    kind = (
        "changed"
        if far
        else "missing"
        if len(expected) > same
        else "extra"
        if len(actual) > same
        else None
    )
    examples = before.examples
    if kind and len(examples) < most:
        key = ", ".join(f"{k}={_shown(pair[k])}" for k in keys)
        examples = (
            *examples,
            f"{kind}: {key}: {names[0]} {_all(expected)}, {names[1]} {_all(actual)}",
        )
    missing, extra = before.missing + len(expected) - same, before.extra + len(actual) - same
    return Difference(missing, extra, before.changed + far, examples)


def _close(expected: Row, actual: Row, tolerance: float) -> bool:
    return all(
        e == a or (isinstance(e, float) and isinstance(a, float) and _near(e, a, tolerance))
        for e, a in zip(expected, actual, strict=True)
    )


def _near(expected: float, actual: float, tolerance: float) -> bool:
    if isnan(expected) or isnan(actual):
        return isnan(expected) and isnan(actual)
    return isclose(expected, actual, rel_tol=tolerance)  # only infinity is close to infinity


def _all(rows: Sequence[Row]) -> str:
    return (
        "; ".join(", ".join(f"{k}={_shown(v)}" for k, v in r.asDict().items()) for r in rows)
        or "nothing"
    )


def _shown(value: object) -> str:
    if isinstance(value, Row) and len(value) == 2:
        return f"[{_shown(value[0])}, {_shown(value[1])})"
    if isinstance(value, list) and value and getattr(value[0], "__fields__", None) == _ENTRY:
        return "{" + ", ".join(f"{_shown(k)}: {_shown(v)}" for k, v in value) + "}"
    return str(value)
