"""Lookups in the plan of a table: the rows to ask for, and rows with their recorded answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

from lakehouse.declare.columns import ARRIVAL, PARTITION, REASON, ROW, helper, quoted
from lakehouse.declare.lookups import Lookup
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.storage.delta import row_keys
from lakehouse.storage.session import nullable
from lakehouse.transform import lateness
from lakehouse.transform.decoding.values import of_ddl

_NESTED = (ArrayType, MapType, StructType)
_FAILURE, _RECORDED = helper("failure"), helper("recorded")


@dataclass(frozen=True, slots=True)
class Answers:
    """Recorded answers: `_row`, `answer`, `failure`, each row once."""

    rows: DataFrame
    # True if each row that is asked for has an answer, and none failed
    complete: bool = False


def without_answers(lookup: Lookup, rows: DataFrame) -> DataFrame:
    """Returns the rows with the column of the answer, null."""
    return rows.withColumn(lookup.name, F.lit(None).cast(nullable(of_ddl(lookup.schema))))


def key_of(table: Table, lookup: Lookup, rows: DataFrame) -> StructType:
    """Returns the columns that the lookup is asked with, as the rows have them.

    Raises DeclarationError if one is missing, or if a column already has the name of the answer.
    """
    where = f"table={table.name}, lookup={lookup.name}, columns={rows.columns}"
    if missing := [name for name in lookup.keys if name not in rows.columns]:
        raise DeclarationError(
            f"{where}: its function's parameters name columns of the table's input, and {', '.join(missing)} is none; rename the "
            "parameter, or add the column in a table before this one"
        )
    nested = [name for name in lookup.keys if isinstance(rows.schema[name].dataType, _NESTED)]
    if nested:
        raise DeclarationError(
            f"{where}: a service is asked with plain values, and {', '.join(nested)} is nested; add a column of what identifies "
            "it in a table before this one"
        )
    if lookup.name in rows.columns:
        raise DeclarationError(
            f"{where}: the answer gets a column of the lookup's name, and there is one; rename the function"
        )
    return nullable(StructType([rows.schema[name] for name in lookup.keys]))


def questions(table: Table, lookup: Lookup, rows: DataFrame, event_time: str) -> DataFrame:
    """Returns the accepted rows to ask for: `_row`, the `key` and the partition."""
    partition = lateness.partition_of(F.col(event_time), table.partition_by)
    asked = rows.where(_has_key(lookup)).select(
        _row(lookup, rows, event_time).alias(ROW),
        F.struct(*map(quoted, lookup.keys)).alias("key"),
        partition.alias(PARTITION),
    )
    return asked.dropDuplicates([ROW])


def answered(
    lookup: Lookup, rows: DataFrame, answers: Answers, event_time: str
) -> tuple[DataFrame, DataFrame | None]:
    """Returns the rows with their answers, and those without one or with a failure, with the reason; None if there are none."""
    recorded = answers.rows.select(
        ROW,
        F.col("answer").alias(lookup.name),
        F.col("failure").alias(_FAILURE),
        F.lit(True).alias(_RECORDED),
    )
    joined = rows.withColumn(ROW, _row(lookup, rows, event_time)).join(recorded, ROW, "left")
    helpers = (ROW, _FAILURE, _RECORDED)
    if answers.complete:
        return joined.drop(*helpers), None
    lacks = F.col(_RECORDED).isNull() & _has_key(lookup)
    unasked = F.when(lacks, F.lit("no answer is recorded for this row"))
    failed = unasked if lookup.on_failure == "null" else F.coalesce(_FAILURE, unasked)
    reason = F.concat(F.lit(f"lookup {lookup.name}: "), failed)
    judged = joined.withColumn(REASON, reason)
    good = judged.where(F.col(REASON).isNull()).drop(REASON, *helpers)
    return good, judged.where(F.col(REASON).isNotNull()).drop(*helpers)


def with_unanswered(
    judged: DataFrame, unanswered: DataFrame | None, placing: Mapping[str, Column]
) -> DataFrame:
    """Returns judged rows and, quarantined, those without an answer, in the columns of the table that the input has."""
    if unanswered is None:
        return judged
    placed = unanswered.withColumns(dict(placing))
    kinds = {field.name: field.dataType for field in placed.schema}
    columns = []
    for field in judged.schema:
        missing = F.lit(None).cast(field.dataType).alias(field.name)
        is_same = kinds.get(field.name) == field.dataType
        columns.append(F.col(quoted(field.name)) if is_same else missing)
    return judged.unionByName(placed.select(columns))


def _row(lookup: Lookup, rows: DataFrame, event_time: str) -> Column:
    names = dict.fromkeys((ARRIVAL, event_time, *lookup.keys))
    return row_keys.column(rows.schema, list(names))


def _has_key(lookup: Lookup) -> Column:
    return reduce(and_, (F.col(quoted(name)).isNotNull() for name in lookup.keys))
