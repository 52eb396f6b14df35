"""Reads the sources of tables: records of topics and of files, tables, files read whole."""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from zlib import crc32

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from lakehouse.declare.columns import HEADERS, HEADERS_TYPE, PLACE, RECORD, helper, quoted
from lakehouse.declare.inputs.changes import ADDED
from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.declare.inputs.sources import OF_ROWS, RecordSource
from lakehouse.errors import DeclarationError
from lakehouse.runtime.kafka_options import isolated, spark_options
from lakehouse.settings import Settings
from lakehouse.storage.delta.arrow import in_spark
from lakehouse.storage.position.schemas import HEAD
from lakehouse.transform.decoding import changes, keys, protobuf, values
from lakehouse.transform.decoding.schemas import (
    DECODED,
    NO_SCHEMAS,
    Schemas,
    WriterSchema,
    has_schemas_of_keys,
    is_framed,
    payload,
    refusals,
    unreadable,
)
from lakehouse.transform.decoding.values import CORRUPT, NO_JSON

KAFKA_SCHEMA = "key BINARY, value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP"
RAW = ("key", "value", "partition", "offset", "timestamp")
_NOT = {"csv": "not a line of CSV with the declared columns"} | dict.fromkeys(
    OF_ROWS, "not a row of the declared types"
)
_OPEN = "a quote that does not end in its line: values have no line breaks"
# all of a row's values, as exact as they are
_ROW = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def topic_rows(
    spark: SparkSession,
    settings: Settings,
    source: KafkaSource,
    begins: Mapping[str, int] | None,
    ends: Mapping,
) -> DataFrame:
    """Returns a topic's raw records from the offsets of its partitions, or the earliest, up to those of `ends` (by topic)."""
    end = ends[source.address]
    first = {p: (begins or {}).get(p, -2) for p in end}  # earliest
    options = spark_options(isolated(settings, source.isolation))
    return (
        spark.read.format("kafka")
        .options(**options)
        .option("assign", json.dumps({source.address: [int(p) for p in end]}))
        .option("startingOffsets", json.dumps({source.address: first}))
        .option("endingOffsets", json.dumps({source.address: end}))
        .option("failOnDataLoss", "true")
        # by this name Spark finds its consumer again, with what it has fetched ahead; else each read
        # leaves one behind for five minutes, tens of megabytes, and a catch-up fills the heap
        .option("kafka.group.id", _group(source.address, options))
        .option("includeHeaders", bool(source.headers))
        .load()
        .select(*RAW, *([HEADERS] if source.headers else []))
    )


def beyond_raw(sources: Iterable[RecordSource]) -> tuple[str, ...]:
    """Returns the columns that records of an ingest table with these sources have besides RAW."""
    listed = [*sources]
    names = {PLACE: any(s.framing for s in listed), HEADERS: any(s.headers for s in listed)}
    return tuple(name for name, has in names.items() if has)


def _group(topic: str, options: Mapping[str, str]) -> str:
    """Returns a name for each way to read a topic: Spark refuses a consumer that it kept for other options."""
    how = (options["kafka.bootstrap.servers"], options.get("kafka.isolation.level", ""))
    return f"lakehouse-{topic}-{crc32(repr(how).encode()):08x}"


def row_records(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Returns records whose value is the column `row` as JSON."""
    return (
        in_spark(spark, rows)
        .withColumn("value", F.to_json("row", _ROW).cast("binary"))
        .select(*RAW)
    )


def decoded(
    records: DataFrame,
    source: RecordSource,
    schemas: Schemas = NO_SCHEMAS,
    besides: tuple[str, ...] | None = None,
) -> DataFrame:
    """Returns raw records as rows of the source's columns and the struct `_record`: the record's own columns and `problem`.

    Every record gives one row, also those that cannot be parsed: `_record.problem` says why. Change
    events that are no changes give none (`changes.passed_over`), and a record of several objects gives a
    row for each. The generator keeps the optimiser from copying the parser into every column that is
    computed from its result. `schemas` are those of the values, if they are in a registry. `besides` are
    the columns of `_record` beyond RAW, by default those of the source. Records with a PLACE are single
    objects that were quarantined.
    """
    besides = beyond_raw([source]) if besides is None else besides
    present = tuple(name for name in besides if name in records.columns)
    by_registry = source.of_registry or has_schemas_of_keys(source)
    writers = tuple(schemas.known.values()) if by_registry else ()
    parsed, *further = _decoding(source, writers, besides, present)
    rows = records.select(*parsed)
    if source.keys:
        rows = rows.where(~changes.passed_over(F.col(helper("value"))))
    for columns in further:
        rows = rows.select(*columns)
    return rows


# made once for each source: a call of Spark for each column costs more than a short step's records
@lru_cache(maxsize=64)
def _decoding(
    source: RecordSource,
    writers: tuple[WriterSchema, ...],
    besides: tuple[str, ...],
    present: tuple[str, ...],
) -> list[list[Column]]:
    """Returns successive selections from raw records. `present` are the columns of `besides` that the records have."""
    schema = values.of_ddl(source.schema)
    of_feed = source.format == "delta_changes"
    feed = values.of_ddl(changes.FEED_WIRE).fields if of_feed else []
    sent = StructType([*schema.fields, *feed])
    value = F.when(F.length("value") <= source.max_bytes, F.col("value"))
    if source.format == "text":
        text = value.cast("string")
        row = F.struct(text.alias(schema.names[0]), F.lit(None).cast("string").alias(CORRUPT))
    elif source.of_registry:
        row = _of_registry(source, schema, writers, value)
    elif source.format == "debezium":
        row = values.record("json", values.of_ddl(changes.WIRE), value)
    else:
        values.check(f"source={source.address}", schema, source.format)
        row = values.record("csv" if source.format == "csv" else "json", sent, value, source.nulls)
    several = bool(source.framing) and PLACE not in present
    event = F.inline(values.records(sent, value) if several else F.array(row))
    of_changes = source.keys or of_feed
    added = ADDED if of_changes else ("deleted", "sent") if source.key else ()
    if own := [name for name in schema.names if name.lower() in (RECORD, *added)]:
        raise DeclarationError(
            f"source={source.address}, columns={', '.join(own)}: the library adds columns of these names to its rows; rename the "
            "fields where they are sent, or leave them out of the schema"
        )
    raw = {name: F.col(helper(name)) for name in RAW}
    extra = {name: F.col(helper(name)) for name in present}
    if several:
        raw["value"] = F.coalesce(F.col(values.OBJECT), raw["value"])
        extra[PLACE] = F.coalesce(F.col(values.PLACE), F.lit(0))
    absent = {PLACE: F.lit(0), HEADERS: F.lit(None).cast(HEADERS_TYPE)}
    extra = {name: extra.get(name, absent[name]) for name in besides}
    columns = {name: F.col(quoted(name)) for name in schema.names}
    if source.key:
        of_key = keys.column(schema[source.key].dataType)
        columns[source.key] = F.coalesce(columns[source.key], of_key)
        columns |= {"deleted": raw["value"].isNull(), "sent": raw["timestamp"]}
    of_record = {"key": F.col(keys.NAME), "timestamp": raw["timestamp"]}
    columns |= {n: of_record[what] for n, what in source.metadata if n not in source.headers}
    columns |= {n: keys.header(extra[HEADERS], of) for n, of in source.headers.items()}
    if of_feed:
        columns |= changes.feed_columns(raw["timestamp"])
    stages = []
    rules = []
    if source.keys:
        stages = changes.stages(schema, source.keys)
        columns = changes.columns(schema)
        rules = changes.rules(source, schema, raw["key"])
    if source.reads_keys:
        of_row = (schema[source.key].dataType, F.col(quoted(source.key))) if source.key else None
        rules += keys.rules(source, raw["key"], of_row)
    rules += [keys.header_rule(extra[HEADERS], name) for name in source.headers.values()]
    problem = _problem(source, schema, sent, raw, columns, rules)
    reading = changes.reading() if source.keys else F.lit(None).cast("string")
    record = {"topic": F.lit(source.address)} | raw | extra
    record |= {"problem": problem, "reading": reading}
    columns[RECORD] = F.struct(*(column.alias(name) for name, column in record.items()))
    parsed = [*(F.col(name).alias(helper(name)) for name in (*RAW, *present)), event]
    if source.reads_keys:
        parsed.append(keys.text(source, F.col("key"), writers).alias(keys.NAME))
    return [parsed, *stages, [column.alias(name) for name, column in columns.items()]]


def _of_registry(
    source: RecordSource, schema: StructType, writers: tuple[WriterSchema, ...], value: Column
) -> Column:
    """Returns the struct of the declared columns by the schema that a value names, with the problem of a bad one in CORRUPT."""
    number = F.conv(F.hex(F.substring(value, 2, HEAD - 1)), 16, 10)
    why = F.when(
        is_framed(value),
        F.concat(F.lit("schema id="), number, F.lit(": the registry does not know it")),
    ).otherwise("no schema id: the value does not begin with the byte 0 and four bytes of an id")
    row = _no_row(schema, F.when(value.isNotNull(), why))
    for writer in writers:
        own = f"schema id={writer.schema.id}: "
        its = writer.wrote(value)
        if problem := unreadable(writer, source, schema):
            of_writer = _no_row(schema, F.lit(own + problem))
        elif writer.messages:  # Spark calls the function for each value, whatever it names
            of_writer = _of_protobuf(writer, source, schema, F.when(its, value), own)
        else:
            of_writer = _written_by(writer, schema, value, own)
        row = F.when(its, of_writer).otherwise(row)
    return row


def _of_protobuf(
    writer: WriterSchema, source: RecordSource, schema: StructType, value: Column, own: str
) -> Column:
    """Returns the struct of values written by a schema of Protobuf; their index names one of its messages."""
    result = schema.toNullable().add(CORRUPT, "string")
    reader = protobuf.Reader(
        writer.descriptors,
        refusals(writer, source, schema),
        to_arrow_type(result, timezone="UTC"),
        source.unknown_fields == "quarantine",
        own,
    )
    return F.arrow_udf(reader.rows, result)(payload(value))  # type: ignore[call-overload]


def _written_by(writer: WriterSchema, schema: StructType, value: Column, own: str) -> Column:
    """Returns the struct of values written by a readable schema. The lambda keeps the parser from being copied into columns."""
    if writer.columns is None:
        values.check(f"schema id={writer.schema.id}", schema, "json")
        parsed = values.record("json", schema, payload(value))

        def rows(row: Column) -> Column:
            why = F.concat(F.lit(f"{own}{NO_JSON}: "), row[CORRUPT])
            return F.struct(*(row[name].alias(name) for name in schema.names), why.alias(CORRUPT))
    else:
        parsed = from_avro(
            payload(value), writer.schema.text, {"avroSchema": writer.reader, "mode": "PERMISSIVE"}
        )
        columns = writer.columns

        def rows(row: Column) -> Column:
            why = F.when(row[DECODED].isNull(), F.lit(f"{own}not Avro of that schema"))
            return F.struct(*_fields(row, columns, schema), why.alias(CORRUPT))

    return F.transform(F.array(parsed), rows)[0]


def _no_row(schema: StructType, why: Column) -> Column:
    nulls = (F.lit(None).cast(f.dataType).alias(f.name) for f in schema)
    return F.struct(*nulls, why.alias(CORRUPT))


def _fields(struct: Column, columns: StructType, declared: StructType) -> list[Column]:
    types = {f.name: f.dataType for f in columns}
    fields = []
    for f in declared:
        value = F.lit(None).cast(f.dataType)
        if f.name in types:
            value = _as_declared(struct[f.name], types[f.name], f.dataType)
        fields.append(value.alias(f.name))
    return fields


def _as_declared(value: Column, data_type: DataType, declared: DataType) -> Column:
    """Returns a value of a readable type (`schemas.apart`) as the declared one."""
    if isinstance(data_type, StructType) and isinstance(declared, StructType):
        return F.when(value.isNotNull(), F.struct(*_fields(value, data_type, declared)))
    if isinstance(data_type, ArrayType) and isinstance(declared, ArrayType):
        inner, inner_declared = data_type.elementType, declared.elementType
        return F.transform(value, lambda each: _as_declared(each, inner, inner_declared))
    if isinstance(data_type, MapType) and isinstance(declared, MapType):
        inner, inner_declared = data_type.valueType, declared.valueType
        return F.transform_values(value, lambda _, each: _as_declared(each, inner, inner_declared))
    return value.cast(declared)


def _problem(
    source: RecordSource,
    schema: StructType,
    sent: StructType,
    raw: Mapping[str, Column],
    columns: Mapping[str, Column],
    further: changes.Rules,
) -> Column:
    """Returns why a record is no row of the source, else null. `sent` has the declared columns, and others of a value."""
    value = raw["value"]
    has_value = value.isNotNull() if source.key else F.lit(True)
    is_empty = (value.isNull() & F.lit(not source.key)) | (F.length(value) == 0)
    rules: list[tuple[Column, Column | str]] = [
        (is_empty, "empty value (tombstone)"),
        (F.length(value) > source.max_bytes, f"larger than max_bytes={source.max_bytes}"),
    ]
    if source.of_registry:
        rules.append((F.col(CORRUPT).isNotNull(), F.col(CORRUPT)))
    else:
        # our reader refuses such a value, too, so that only what it refuses is looked at once more
        refused = F.lit(True) if source.format == "text" else F.col(CORRUPT).isNotNull()
        rules.append((refused & ~F.is_valid_utf8(value.cast("string")), "not UTF-8"))
        if source.format == "csv":
            text = value.cast("string")
            quotes = F.length(text) - F.length(F.translate(text, '"', ""))
            rules.append((quotes % 2 == 1, _OPEN))
        what = _NOT.get(source.format, NO_JSON)
        rules.append((F.col(CORRUPT).isNotNull(), F.concat(F.lit(f"{what}: "), F.col(CORRUPT))))
    rules += further
    if source.require_key or source.key:
        rules.append((raw["key"].isNull(), "no key"))
    if not source.keys:  # of change events
        rules += [
            (columns[f.name].isNull() & has_value, f"missing field: {f.name}")
            for f in schema.fields
            if not f.nullable
        ]
    problem = F.lit(None).cast("string")
    if source.unknown_fields == "quarantine" and not source.of_registry:
        names = F.json_object_keys(value.cast("string"))
        others = F.array_sort(F.array_except(names, F.lit(sent.fieldNames())))
        listed = F.concat(F.lit("fields not declared: "), F.array_join(others, ", "))
        problem = F.when(F.size(others) > 0, listed)
    for broken, reason in reversed(rules):
        problem = F.when(broken, F.lit(reason)).otherwise(problem)
    return problem
