"""Fingerprints of sets of rows, and the differences between two of them.

A digest is free of order: the count of rows and two sums over salted 64-bit hashes of each row. Sums, because an
exclusive or cancels duplicates; hashes over (value, is null) pairs, because xxhash64 ignores nulls. Equal digests mean
equal multisets of rows (a chance of about 2^-100 for an accident); unequal ones only ask for the comparison of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType

from lakehouse.event_time import text

_SALTS = ("a", "b")


@dataclass(frozen=True, slots=True)
class Digest:
    rows: int
    a: int
    b: int

    def __str__(self) -> str:
        return f"{self.rows}:{self.a:016x}{self.b:016x}"


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows by key: only in the bounded result (missing), only in the table (extra), or with other values (changed)."""

    missing: int
    extra: int
    changed: int
    examples: tuple[str, ...]

    @property
    def total(self) -> int:
        return self.missing + self.extra + self.changed


def proven_columns(rows: DataFrame) -> list[str]:
    """The columns that are compared: all but the technical ones, which start with `_`."""
    return sorted(c for c in rows.columns if not c.startswith("_"))


def digest(rows: DataFrame) -> Digest:
    """The fingerprint of `rows`, technical columns left out."""
    return digest_by(rows, F.lit(1)).get(1, Digest(0, 0, 0))


def digest_by(rows: DataFrame, group: Column) -> dict:
    """One digest for each value of `group`, in one pass."""
    hashes = [_hash(rows, salt) for salt in _SALTS]
    # the two halves are summed apart: a sum of 64-bit values would overflow, one of decimals would be slow
    halves = [
        F.sum(half).alias(f"{salt}{i}")
        for salt in _SALTS
        for i, half in enumerate((F.shiftrightunsigned(salt, 32), F.col(salt).bitwiseAND(0xFFFFFFFF)))
    ]
    hashed = rows.select(group.alias("_group"), *(h.alias(s) for h, s in zip(hashes, _SALTS, strict=True)))
    sums = hashed.groupBy("_group").agg(F.count(F.lit(1)).alias("n"), *halves).collect()
    return {r["_group"]: Digest(r["n"], *(_joined(r[f"{s}0"], r[f"{s}1"]) for s in _SALTS)) for r in sums}


def _joined(high: int, low: int) -> int:
    return ((high << 32) + low) % 2**64


def _hash(rows: DataFrame, salt: str) -> Column:
    pairs = [c for name in proven_columns(rows) for c in (_hashable(rows, name), F.col(name).isNull())]
    return F.xxhash64(F.lit(salt), *pairs)


def _hashable(rows: DataFrame, name: str) -> Column:
    kind: DataType = rows.schema[name].dataType
    if isinstance(kind, DoubleType | FloatType):
        return F.col(name) + F.lit(0.0).cast(kind)  # -0.0 and 0.0 are the same value
    if isinstance(kind, StructType | ArrayType | MapType):
        return F.to_json(F.col(name), {"ignoreNullFields": "false"})
    return F.col(name)


def differences(
    expected: DataFrame, actual: DataFrame, keys: Sequence[str], tolerance: float = 0.0, most: int = 20
) -> Difference:
    """The rows that differ, as multisets, paired by `keys`; doubles within the relative `tolerance` are the same."""
    columns = proven_columns(expected)
    keys = [k for k in keys if k in columns] or columns
    values = [c for c in columns if c not in keys]
    row, ours = _struct(values).alias("row"), F.col("ours")
    # tagged and grouped, not joined: both sides come from the same tables, in a join their columns would be ambiguous
    only_expected = (
        expected.select(*columns).exceptAll(actual.select(*columns)).select(*keys, row, F.lit(True).alias("ours"))
    )
    only_actual = (
        actual.select(*columns).exceptAll(expected.select(*columns)).select(*keys, row, F.lit(False).alias("ours"))
    )
    sides = {"expected": F.when(ours, F.col("row")), "actual": F.when(~ours, F.col("row"))}
    lists = [F.sort_array(F.collect_list(rows)).alias(side) for side, rows in sides.items()]
    pairs = only_expected.unionByName(only_actual).groupBy(*keys).agg(*lists).persist()
    try:
        return _counted(pairs.toLocalIterator(), keys, tolerance, most)
    finally:
        pairs.unpersist()


def _struct(values: Sequence[str]) -> Column:
    return F.struct(*values) if values else F.struct(F.lit(1).alias("row"))


def _counted(pairs, keys: Sequence[str], tolerance: float, most: int) -> Difference:
    missing = extra = changed = 0
    examples: list[str] = []
    for pair in pairs:
        expected, actual = pair["expected"] or [], pair["actual"] or []
        same = min(len(expected), len(actual))
        far = sum(not _close(e, a, tolerance) for e, a in zip(expected, actual, strict=False))
        kind = "changed" if far else "missing" if len(expected) > same else "extra" if len(actual) > same else None
        missing, extra, changed = missing + len(expected) - same, extra + len(actual) - same, changed + far
        if kind and len(examples) < most:
            key = ", ".join(f"{k}={_shown(pair[k])}" for k in keys)
            examples.append(f"{kind}: {key}: bounded {_all(expected)}, table {_all(actual)}")
    return Difference(missing, extra, changed, tuple(examples))


def _close(expected: Row, actual: Row, tolerance: float) -> bool:
    return all(
        e == a or (isinstance(e, float) and isinstance(a, float) and abs(e - a) <= tolerance * max(abs(e), abs(a)))
        for e, a in zip(expected, actual, strict=True)
    )


def _all(rows: Sequence[Row]) -> str:
    return "; ".join(", ".join(f"{k}={_shown(v)}" for k, v in r.asDict().items()) for r in rows) or "nothing"


def _shown(value: object) -> str:
    if isinstance(value, Row) and len(value) == 2:
        return f"[{_shown(value[0])}, {_shown(value[1])})"
    return text(value) if isinstance(value, datetime) else str(value)  # as UTC: PySpark hands out naive local time
