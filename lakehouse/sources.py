"""Reads what tables are computed from: a topic, a table, files."""

from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import event_time
from lakehouse.kafka_options import spark_options
from lakehouse.settings import Settings
from lakehouse.table import FileSource, KafkaSource

KAFKA_SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
RECORD = "_record"  # struct<key, value, timestamp, problem>: what a parsed row was parsed from
_CORRUPT = "_corrupt"
_EVENT = "_event"


def topic_stream(spark: SparkSession, settings: Settings, source: KafkaSource, starting_offsets: str) -> DataFrame:
    """The topic as a stream of its raw records. `starting_offsets`: `earliest` or Spark's JSON of offsets."""
    return (
        spark.readStream.format("kafka")
        .options(**spark_options(settings))
        .option("subscribe", source.topic)
        .option("startingOffsets", starting_offsets)
        .option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
        .option("failOnDataLoss", "true")
        .load()
        .select("key", "value", "topic", "partition", "offset", "timestamp")
    )


def table_stream(spark: SparkSession, settings: Settings, path: str) -> DataFrame:
    """The live rows of a Delta table, commit by commit from its first, so that stored watermarks come in order.

    Rows that a bounded run wrote are left out: they replace what already went downstream.
    """
    return (
        spark.readStream.format("delta")
        .option("startingVersion", 0)
        .option("skipChangeCommits", "true")
        .option("maxFilesPerTrigger", settings.max_files_per_trigger)
        .load(path)
    )


def file_rows(spark: SparkSession, source: FileSource) -> DataFrame:
    """All rows of the files; a row that does not fit the schema fails the read, since a reference must be whole."""
    return (
        spark.read.format(source.format).schema(source.schema).option("header", "true").option("mode", "FAILFAST")
        .load(source.path)
    )  # fmt: skip


def decoded(records: DataFrame, source: KafkaSource) -> DataFrame:
    """Raw records with the column `_event`: the value as a struct of the source's columns and `_corrupt`.

    Part of the streaming query, before its micro-batch is handed over: there the parser's result is a column like any
    other. In one plan with what follows, the optimiser would copy the parser into every filter and projection.
    """
    wanted = StructType(StructType.fromDDL(source.schema).fields).add(_CORRUPT, "string")
    json = F.when(F.length("value") <= source.max_bytes, F.col("value").cast("string"))
    return records.select("*", F.from_json(json, wanted, {"columnNameOfCorruptRecord": _CORRUPT}).alias(_EVENT))


def parsed(records: DataFrame, source: KafkaSource, watermark: datetime, arrived: datetime) -> DataFrame:
    """Decoded records as rows of the source's columns.

    Every record gives one row, also those that cannot be parsed: `_record.problem` says why. `_arrival` carries the
    watermark in force, the record's position and the time of arrival.
    """
    schema = StructType.fromDDL(source.schema)
    arrival = F.struct(
        F.lit(watermark).alias("watermark"), "topic", "partition", "offset", F.lit(arrived).alias("time")
    )
    record = F.struct("key", "value", "timestamp", _problem(source, schema).alias("problem"))
    columns = [F.col(f"{_EVENT}.{name}").alias(name) for name in schema.fieldNames()]
    return records.select(*columns, record.alias(RECORD), arrival.alias(event_time.ARRIVAL))


def _problem(source: KafkaSource, schema: StructType) -> Column:
    """Why a record is not a row of the source, the first reason found; null if it is one."""
    value = F.col("value")
    rules = [
        (value.isNull() | (F.length(value) == 0), "empty value (tombstone)"),
        (F.length(value) > source.max_bytes, f"larger than max_bytes={source.max_bytes}"),
        (~F.is_valid_utf8(value.cast("string")), "not UTF-8"),
        (F.col(f"{_EVENT}.{_CORRUPT}").isNotNull(), "not a JSON object of the declared types"),
    ]
    if source.require_key:
        rules.append((F.col("key").isNull(), "no key"))
    rules += [
        (F.col(f"{_EVENT}.{f.name}").isNull(), f"missing field: {f.name}") for f in schema.fields if not f.nullable
    ]
    problem = F.lit(None).cast("string")
    for broken, reason in reversed(rules):
        problem = F.when(broken, F.lit(reason)).otherwise(problem)
    return problem
