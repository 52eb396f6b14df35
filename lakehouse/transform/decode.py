"""Reads what tables are computed from: a topic, a table, files."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.declare.columns import RECORD, helper
from lakehouse.declare.sources import FileSource, KafkaSource
from lakehouse.errors import DeclarationError
from lakehouse.runtime.kafka_options import isolated, spark_options
from lakehouse.settings import Settings

KAFKA_SCHEMA = "key BINARY, value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP"
RAW = ("key", "value", "partition", "offset", "timestamp")
_CORRUPT = helper("corrupt")


def topic_rows(
    spark: SparkSession,
    settings: Settings,
    source: KafkaSource,
    begins: Mapping[str, int] | None,
    ends: Mapping,
) -> DataFrame:
    """The topic's raw records from the offsets of its partitions, or the earliest, up to those of `ends` (by topic)."""
    end = ends[source.topic]
    first = {p: (begins or {}).get(p, -2) for p in end}  # earliest
    return (
        spark.read.format("kafka")
        .options(**spark_options(isolated(settings, source.isolation)))
        .option("assign", json.dumps({source.topic: [int(p) for p in end]}))
        .option("startingOffsets", json.dumps({source.topic: first}))
        .option("endingOffsets", json.dumps({source.topic: end}))
        .option("failOnDataLoss", "true")
        # by this name Spark finds its consumer again, with what it has fetched ahead; else each read
        # leaves one behind for five minutes, tens of megabytes, and a catch-up fills the heap
        .option("kafka.group.id", f"lakehouse-{source.topic}")
        .load()
        .select(*RAW)
    )


def file_rows(spark: SparkSession, source: FileSource) -> DataFrame:
    """All rows of the files.

    A row that does not fit the schema fails the read, since a reference must be whole.

    Raises DeclarationError if the header line of CSV files does not name the columns, or a Delta table has others.
    """
    if source.format == "delta":  # which has its columns itself
        return _table_rows(spark, source)
    options = {"header": str(source.header).lower(), "mode": "FAILFAST"}
    if source.format == "csv" and source.header:
        _check_header(spark, source)
        options["enforceSchema"] = "false"  # Spark compares the header of each further file as well
    return (
        spark.read.format(source.format).schema(source.schema).options(**options).load(source.path)
    )


def _table_rows(spark: SparkSession, source: FileSource) -> DataFrame:
    """The declared columns of a Delta table of others, at its newest version."""
    rows = spark.read.format("delta").load(source.path)
    there = {field.name: field.dataType for field in rows.schema}
    wanted = cast(StructType, StructType.fromDDL(source.schema)).fields
    for field in wanted:
        if there.get(field.name) != field.dataType:
            found = there[field.name].simpleString() if field.name in there else "not there"
            raise DeclarationError(
                f"files={source.path}, column={field.name}: the schema has it as {field.dataType.simpleString()}, and in "
                f"the Delta table it is {found}; declare the column as it is there"
            )
    return rows.select(*(field.name for field in wanted))


def _check_header(spark: SparkSession, source: FileSource) -> None:
    """Compares the first line with the columns: Spark takes columns by their place, and any first line for a header."""
    wanted = cast(StructType, StructType.fromDDL(source.schema)).fieldNames()
    # none of a file without a line
    named = spark.read.option("header", "true").csv(source.path).columns
    if [name.lower() for name in named] != [name.lower() for name in wanted]:
        raise DeclarationError(
            f"files={source.path}, first line={','.join(named)!r}: a header line names the columns of the schema in their order, "
            f"{','.join(wanted)!r}; a row would be lost, or values taken for those of other columns. Correct the file, or "
            "declare header=False for files that have no such line"
        )


def decoded(records: DataFrame, source: KafkaSource) -> DataFrame:
    """Raw records as rows of the source's columns and the struct `_record`: the record's own columns and `problem`.

    Every record gives one row, also those that cannot be parsed: `_record.problem` says why. The
    generator keeps the optimiser from copying the parser into every column that is computed from
    its result.
    """
    parsed, named = _decoding(source)
    return records.select(*parsed).select(*named)


# made once for each source: a call of Spark for each column costs more than a short step's records
@lru_cache(maxsize=64)
def _decoding(source: KafkaSource) -> tuple[list[Column], list[Column]]:
    """What is selected of raw records, and what of that."""
    schema = cast(StructType, StructType.fromDDL(source.schema))
    wanted = StructType(schema.fields).add(_CORRUPT, "string")
    text = F.when(F.length("value") <= source.max_bytes, F.col("value").cast("string"))
    parsed = {
        "json": F.from_json(text, wanted, {"columnNameOfCorruptRecord": _CORRUPT}),
        "text": F.struct(text.alias(schema.names[0]), F.lit(None).cast("string").alias(_CORRUPT)),
    }
    event = F.inline(F.array(parsed[source.format]))
    if own := [
        name
        for name in schema.names
        if name.lower() in (RECORD, *(("deleted", "sent") if source.key else ()))
    ]:
        raise DeclarationError(
            f"topic={source.topic}, columns={', '.join(own)}: the library adds columns of these names to its rows; rename the "
            "fields where they are sent, or leave them out of the schema"
        )
    raw = {name: F.col(helper(name)) for name in RAW}
    columns = {name: F.col(name) for name in schema.names}
    if source.key:
        gone = raw["value"].isNull()
        columns[source.key] = F.when(gone, raw["key"].cast("string")).otherwise(columns[source.key])
        columns |= {"deleted": gone, "sent": raw["timestamp"]}
    known = (
        {"topic": F.lit(source.topic)} | raw | {"problem": _problem(source, schema, raw, columns)}
    )
    columns[RECORD] = F.struct(*(column.alias(name) for name, column in known.items()))
    return [*(F.col(name).alias(helper(name)) for name in RAW), event], [
        c.alias(name) for name, c in columns.items()
    ]


def _problem(
    source: KafkaSource,
    schema: StructType,
    raw: Mapping[str, Column],
    columns: Mapping[str, Column],
) -> Column:
    """Why a record is not a row of the source, the first reason found; null if it is one."""
    value = raw["value"]
    there = value.isNotNull() if source.key else F.lit(True)
    rules = [
        (
            (value.isNull() & F.lit(not source.key)) | (F.length(value) == 0),
            "empty value (tombstone)",
        ),
        (F.length(value) > source.max_bytes, f"larger than max_bytes={source.max_bytes}"),
        (~F.is_valid_utf8(value.cast("string")), "not UTF-8"),
        (F.col(_CORRUPT).isNotNull(), "not a JSON object of the declared types"),
    ]
    if source.require_key or source.key:
        rules.append((raw["key"].isNull(), "no key"))
    rules += [
        (columns[f.name].isNull() & there, f"missing field: {f.name}")
        for f in schema.fields
        if not f.nullable
    ]
    problem = (
        _undeclared(value, schema)
        if source.unknown_fields == "quarantine"
        else F.lit(None).cast("string")
    )
    for broken, reason in reversed(rules):
        problem = F.when(broken, F.lit(reason)).otherwise(problem)
    return problem


def _undeclared(value: Column, schema: StructType) -> Column:
    """Names the fields of the JSON object that the schema does not have; null if there is none."""
    fields = F.array_sort(
        F.array_except(F.json_object_keys(value.cast("string")), F.lit(schema.fieldNames()))
    )
    return F.when(
        F.size(fields) > 0, F.concat(F.lit("fields not declared: "), F.array_join(fields, ", "))
    )
