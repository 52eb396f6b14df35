"""The schemas of a registry by which values were written, and whether they can be read as the declared columns.

A value begins with the byte 0 and the four bytes of its schema's id (Confluent's wire format). Each
id is asked for once and kept beside the table's commit log. Values with an id that the registry does
not know are quarantined. A later replay decodes them when the schema is there.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro

from lakehouse.declare.columns import helper
from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.declare.table import Table
from lakehouse.errors import SettingsError
from lakehouse.runtime.protobuf import FIRST, Indexes, compiled, messages
from lakehouse.runtime.schema_registry import registry
from lakehouse.settings import Settings
from lakehouse.storage.position import schemas
from lakehouse.storage.position.schemas import HEAD, Schema
from lakehouse.storage.session import Session
from lakehouse.transform.decoding import protobuf, values

DECODED = helper("decoded")  # a field that every decoded record has
_TYPES = {"avro": "AVRO", "json_schema": "JSON", "protobuf": "PROTOBUF"}  # of a source's format
# with their digits
_WHOLE: dict[T.DataType, int] = {
    T.ByteType(): 3,
    T.ShortType(): 5,
    T.IntegerType(): 10,
    T.LongType(): 19,
}
_WIDER: dict[T.DataType, tuple[T.DataType, ...]] = {  # no value changes
    T.ByteType(): (T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()),
    T.ShortType(): (T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()),
    T.IntegerType(): (T.LongType(), T.DoubleType()),
    T.FloatType(): (T.DoubleType(),),
}


@dataclass(frozen=True, slots=True, eq=False)
class WriterSchema:
    """A schema of the registry, as it is read: one value for each id, so that it is recognised."""

    schema: Schema
    columns: T.StructType | None = None  # of Avro
    problem: str = ""  # why it cannot be read
    reader: str = ""  # of Avro: with the field DECODED
    descriptors: bytes = b""  # of Protobuf, and its messages: names and columns
    messages: Mapping[Indexes, tuple[str, T.StructType]] = field(default_factory=dict)

    def wrote(self, value: Column) -> Column:
        """Returns the condition that a value names this schema."""
        return F.substring(value, 1, HEAD) == F.lit(self.schema.id.to_bytes(HEAD))


@dataclass(frozen=True, slots=True)
class Schemas:
    """The schemas of some records' values, and the ids that the registry does not know."""

    known: Mapping[int, WriterSchema] = field(default_factory=dict)
    unknown: Collection[int] = ()


NO_SCHEMAS = Schemas()


def of_records(
    session: Session,
    table: Table,
    topics: Mapping[str, RecordSource],
    records: "Mapping[str, DataFrame | pa.Table]",
    unknown: Collection[int] = (),
) -> Schemas:
    """Returns the schemas of an ingest table's raw records, which are given by input.

    :param unknown: ids that were unknown when the same records were read first, and stay so.
    :raises RegistryAway: if a schema is not kept yet, and the registry does not answer.
    :raises SettingsError: if a schema is not kept yet, and the settings name no registry, or another one than before.
    """
    ids = {
        number
        for name, source in topics.items()
        for column, named in (("value", source.of_registry), ("key", has_schemas_of_keys(source)))
        if named and name in records
        for number in ids_of(records[name], column)
    }
    if not ids:
        return NO_SCHEMAS
    stored = schemas.kept(session.settings, table)
    by_id = {number: stored[number] for number in ids & stored.keys()}
    unknown_ids = set(unknown)
    if new := sorted(ids - stored.keys() - unknown_ids):
        check_registry(session.settings, table, stored)
    for number in new:
        if (schema := registry(session.settings).schema(number)) is None:
            unknown_ids.add(number)
        else:
            schemas.keep(session.settings, table, schema)
            by_id[number] = schema
    return Schemas(
        {n: _read(session.spark, schema) for n, schema in by_id.items() if n not in unknown_ids},
        sorted(ids & unknown_ids),
    )


def has_schemas_of_keys(source: RecordSource) -> bool:
    """Returns True if keys are read by schemas of the registry."""
    return source.reads_keys and source.key_format in ("avro", "protobuf")


def check_registry(settings: Settings, table: Table, stored: Mapping[int, Schema]) -> None:
    """Raises SettingsError if the registry is another one: it has other schemas under the same ids."""
    if not stored:
        return
    asked = registry(settings)
    newest = stored[max(stored)]
    registered = asked.schema(newest.id)
    if registered is not None and registered != newest:
        raise SettingsError(
            f"registry.url={asked.url}, table={table.name}, schema id={newest.id}: an id never changes, and the table was filled "
            "by another schema of that id, so this is another registry. Set the address of that one, or read the topic by a "
            "new ingest table"
        )


def is_framed(value: Column) -> Column:
    """Returns the condition that a value begins as one of the registry's does."""
    return (F.length(value) >= HEAD) & (F.substring(value, 1, 1) == F.lit(b"\0"))


def payload(value: Column) -> Column:
    """Returns what follows the schema's id."""
    return F.substring(value, HEAD + 1, 0x7FFFFFFF)


def ids_of(records: DataFrame | pa.Table, column: str = "value") -> set[int]:
    """Returns the ids in the values, or keys, of raw records; one that does not begin with an id has none."""
    if isinstance(records, DataFrame):
        framed = records.where(is_framed(F.col(column)))
        heads = framed.select(F.substring(column, 1, HEAD)).distinct().collect()
        return {int.from_bytes(row[0]) for row in heads}
    heads = pc.unique(pc.binary_slice(records[column].combine_chunks(), 0, HEAD)).to_pylist()
    return {int.from_bytes(head) for head in heads if head and len(head) == HEAD and head[0] == 0}


def refusal(session: Session, table: Table, source: KafkaSource) -> str:
    """Returns why values of the subject's newest schema cannot be read; empty if they can, or without a subject.

    Raises RegistryAway, and SettingsError if the registry is another one than before.
    """
    check_registry(session.settings, table, schemas.kept(session.settings, table))
    subject = f"{source.address}-value"
    newest = registry(session.settings).newest(subject)
    if newest is None:
        return ""
    declared = values.of_ddl(source.schema)
    writer = _read(session.spark, newest)
    problem = unreadable(writer, source, declared)
    if not problem and writer.columns is not None:
        problem = _lacking(writer.columns, declared)
    if not problem and writer.messages:  # any of them may be sent
        refused = refusals(writer, source, declared)
        for at, (name, columns) in writer.messages.items():
            if at not in refused and (lacking := _lacking(columns, declared)):
                refused[at] = f"message {name}: {lacking}"
        problem = refused[FIRST] if len(refused) == len(writer.messages) else ""
    return problem and (
        f"topic={source.address}, subject={subject}, schema id={newest.id}: {problem}; its messages would be quarantined. "
        "Declare the columns as they are sent, or have the producers send what is declared"
    )


def _lacking(written: T.StructType, declared: T.StructType) -> str:
    names = set(written.fieldNames())
    lacking = [f.name for f in declared if f.name not in names and not f.nullable]
    return f"it has no field {lacking[0]}, which is declared NOT NULL" if lacking else ""


def unreadable(writer: WriterSchema, source: RecordSource, declared: T.StructType) -> str:
    """Returns why values of that schema are no rows of the source; empty if they are."""
    expected = _TYPES[source.format]
    if writer.schema.type != expected:
        return f"it is of type {writer.schema.type}, and format={source.format!r} is declared"
    if writer.problem or writer.columns is None:
        return writer.problem
    return _differing(writer.columns, source, declared)


def refusals(
    writer: WriterSchema, source: RecordSource, declared: T.StructType
) -> dict[Indexes, str]:
    """Returns the messages of a schema of Protobuf that are no rows of the source, each with the reason."""
    refused = {}
    for at, (name, columns) in writer.messages.items():
        if problem := _differing(columns, source, declared):
            refused[at] = f"message {name}: {problem}"
    return refused


def _differing(written: T.StructType, source: RecordSource, declared: T.StructType) -> str:
    if source.unknown_fields == "quarantine" and (
        others := set(written.fieldNames()) - set(declared.fieldNames())
    ):
        return f"fields not declared: {', '.join(sorted(others))}"
    return apart(written, declared)


def apart(written: T.DataType, declared: T.DataType, name: str = "") -> str:
    """Returns why values of a type cannot be read as another, fields by name; empty if they can. A missing field is null."""
    if isinstance(written, T.StructType) and isinstance(declared, T.StructType):
        types = {f.name: f.dataType for f in written}
        before = f"{name}." if name else ""
        both = [f for f in declared if f.name in types]
        pairs = [(types[f.name], f.dataType, f"{before}{f.name}") for f in both]
    elif isinstance(written, T.ArrayType) and isinstance(declared, T.ArrayType):
        pairs = [(written.elementType, declared.elementType, f"{name}[]")]
    elif isinstance(written, T.MapType) and isinstance(declared, T.MapType):
        pairs = [
            (written.keyType, declared.keyType, f"{name} (key)"),
            (written.valueType, declared.valueType, f"{name}[]"),
        ]
    elif written == declared or is_wider(declared, written):
        return ""
    else:
        return (
            f"{name} is {written.simpleString()} there, and declared as {declared.simpleString()}"
        )
    return next(filter(None, (apart(*pair) for pair in pairs)), "")


def is_wider(declared: T.DataType, written: T.DataType) -> bool:
    """Returns True if a type has every value of another."""
    if isinstance(declared, T.DecimalType):
        before = declared.precision - declared.scale  # digits before the point
        if isinstance(written, T.DecimalType):
            return written.scale <= declared.scale and written.precision - written.scale <= before
        return _WHOLE.get(written, before + 1) <= before
    return declared in _WIDER.get(written, ())


@cache
def _read(spark: SparkSession, schema: Schema) -> WriterSchema:
    """Returns the schema as it is read, with fields of Avro in the types that Spark gives them."""
    if schema.type == "AVRO":
        return _as_avro(spark, schema)
    return _as_protobuf(schema) if schema.type == "PROTOBUF" else WriterSchema(schema)


def _as_protobuf(schema: Schema) -> WriterSchema:
    try:
        descriptors = compiled(schema)
    except ValueError as err:
        return WriterSchema(schema, problem=f"protoc cannot read the schema: {err}")
    kinds = {at: message.DESCRIPTOR for at, message in messages(descriptors).items()}
    by_index = {at: (message.full_name, protobuf.columns(message)) for at, message in kinds.items()}
    problem = "" if by_index else "it has no message"
    return WriterSchema(schema, problem=problem, descriptors=descriptors, messages=by_index)


def _as_avro(spark: SparkSession, schema: Schema) -> WriterSchema:
    parsed = json.loads(schema.text)
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        return WriterSchema(schema, problem="it is no record, and has no fields")
    # Spark makes undecodable values null; this field is then null, too
    decoded = {"name": DECODED, "type": "boolean", "default": True}
    reader = json.dumps({**parsed, "fields": [*parsed["fields"], decoded]})
    try:
        decoding = from_avro(F.lit(None).cast("binary"), schema.text, {"avroSchema": reader})
        rows = spark.range(0).select(decoding.alias("value"))
    except (PySparkException, Py4JJavaError) as err:
        text = str(err.java_exception.getMessage() if isinstance(err, Py4JJavaError) else err)
        why = text.strip().splitlines()[0]
        return WriterSchema(schema, problem=f"Spark cannot read the schema: {why}")
    value = cast(T.StructType, rows.schema["value"].dataType)
    columns = T.StructType([f for f in value if f.name != DECODED])
    return WriterSchema(schema, columns, reader=reader)
