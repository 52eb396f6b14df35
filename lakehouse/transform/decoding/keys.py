"""The key and the headers of a record, as text. In a compacted topic the key identifies the row of a record.

Nothing is guessed: a key that is not of its format, or not that of its row, quarantines the record.
"""

import json
import re
from typing import cast

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType

from lakehouse.declare.columns import helper
from lakehouse.declare.inputs.sources import RecordSource
from lakehouse.storage.position.schemas import HEAD
from lakehouse.transform.decoding import protobuf
from lakehouse.transform.decoding.schemas import WriterSchema, is_framed, payload
from lakehouse.transform.decoding.values import CORRUPT

NAME = helper("key_text")
_LONGEST = 1_024  # bytes of a key in JSON: Java's expressions recurse over what they repeat
_STRING = r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})[^"\\\x00-\x1f]*)*"'
_OTHER = r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false)"
_VALUE = f"(?:{_STRING}|{_OTHER})"
_SHOWN = 40  # characters of a key in a reason
_BYTES = {"int": 4, "long": 8}  # of a whole number, the highest first
_REMEDY = "; declare by key_format how keys are written"
_AVRO = ("string", "int", "long")
_PROTOBUF = (StringType, IntegerType, LongType)


def text(source: RecordSource, key: Column, writers: tuple[WriterSchema, ...]) -> Column:
    """Returns the text of keys; null for one that is missing or not of its format. `writers` are the registry's schemas."""
    plain = F.when(F.is_valid_utf8(key.cast("string")), key.cast("string"))
    framed = is_framed(key) & (F.length(key) > HEAD)
    match source.key_format:
        case "text":
            return plain
        case "json":
            return _of_json(plain, source.key)
        case "json_schema":
            return F.when(framed, _of_json(payload(key).cast("string"), source.key))
        case "avro":
            return F.when(framed, _of_avro(source.key, key, writers))
        case "protobuf":
            return F.when(framed, _of_protobuf(source.key, key, writers))
        case "int" | "long" as kind:
            return _of_bytes(key, _BYTES[kind])
    # as text; the bytes of a number or of a registry have characters that no text has
    looks_so = F.when(plain.rlike(r'^\s*["{]'), plain)
    return F.coalesce(_of_json(looks_so, source.key), F.when(~plain.contains("\0"), plain))


def column(declared: DataType) -> Column:
    """Returns the key as a value of the declared type; null if it is none."""
    return F.col(NAME).try_cast(declared)


def rules(
    source: RecordSource, key: Column, of_row: tuple[DataType, Column] | None
) -> list[tuple[Column, Column]]:
    """Returns the conditions under which a record's key is unreadable or not that of its row, with their reasons.

    `of_row` is the type and the value of the row's own column, if it has one.
    """
    key_text = F.col(NAME)
    shown = F.concat(F.lit("key="), F.left(key_text, F.lit(_SHOWN)))
    how = source.key_format or "text or JSON"
    unread = F.concat(
        F.lit("key=X'"), F.left(F.hex(key), F.lit(_SHOWN)), F.lit(f"': it is not {how}{_REMEDY}")
    )
    checks = [(key.isNotNull() & key_text.isNull(), unread)]
    if of_row:
        declared, value = of_row
        read = column(declared)
        exact = F.coalesce(read.cast("string") == key_text, F.lit(False))
        of_type = F.lit(f": {source.key} is declared as {declared.simpleString()}{_REMEDY}")
        own = F.left(value.cast("string"), F.lit(_SHOWN))
        another = F.concat(F.lit(f": the row has {source.key}="), own, F.lit(_REMEDY))
        checks.append((key_text.isNotNull() & ~exact, F.concat(shown, of_type)))
        checks.append((value != read, F.concat(shown, another)))
    return checks


def header(headers: Column, name: str) -> Column:
    """Returns the text of the last header of that name; null if it is missing, has no value or is not UTF-8."""
    value = _last(headers, name)
    return F.when(F.is_valid_utf8(value), value)


def header_rule(headers: Column, name: str) -> tuple[Column, str]:
    """Returns the condition under which that header is unreadable, with the reason."""
    valid = F.coalesce(F.is_valid_utf8(_last(headers, name)), F.lit(True))
    return ~valid, f"header={name}: not UTF-8"


def _last(headers: Column, name: str) -> Column:
    named = F.filter(headers, lambda each: each["key"] == name)
    return F.try_element_at(named, F.lit(-1))["value"].cast("string")


def _of_json(plain: Column, name: str) -> Column:
    """Returns the text of a string, a number or an object of the one field `name`, also in a JsonConverter's envelope."""

    def plain_value(token: Column) -> Column:
        string = F.when(token.rlike(f"^{_STRING}$"), F.get_json_object(token, "$"))
        return string.when(token.rlike(f"^{_OTHER}$"), token)

    def field(of: Column) -> Column:
        named = re.escape(json.dumps(name, ensure_ascii=False))
        return F.regexp_extract(of, rf"^\{{\s*{named}\s*:\s*({_VALUE})\s*\}}$", 1)

    def value(of: Column) -> Column:
        within = plain_value(field(of)) if name else F.lit(None).cast("string")
        return F.coalesce(plain_value(of), within)

    short = F.when(F.octet_length(plain) <= _LONGEST, F.regexp_replace(plain, r"^\s+|\s+$", ""))
    last = F.regexp_extract(short, rf'"payload"\s*:\s*({_VALUE}|\{{[^{{}}]*\}})\s*\}}$', 1)
    wrapped = F.array_sort(F.json_object_keys(short)) == F.array(F.lit("payload"), F.lit("schema"))
    # the payload of the first object is then also the last, so there is one object alone
    whole = F.get_json_object(short, "$.payload") == F.coalesce(
        plain_value(last), F.get_json_object(last, "$")
    )
    return F.when(wrapped & whole, value(last)).otherwise(value(short))


def _of_bytes(key: Column, length: int) -> Column:
    digits = F.hex(F.when(F.length(key) == length, key))
    unsigned = F.conv(digits, 16, 10).cast("decimal(20,0)")
    half, whole = (
        F.lit(str(1 << bits)).cast("decimal(20,0)") for bits in (8 * length - 1, 8 * length)
    )
    return F.when(unsigned >= half, unsigned - whole).otherwise(unsigned).cast("string")


def _of_avro(name: str, key: Column, writers: tuple[WriterSchema, ...]) -> Column:
    """Returns the text of a string, a whole number or a record of the one field `name`, by the schema that each key names."""
    value = F.lit(None).cast("string")
    for writer in writers:
        if writer.schema.type != "AVRO" or not (kind := _kind(writer.schema.text, name)):
            continue
        read = from_avro(payload(key), writer.schema.text, {"mode": "PERMISSIVE"})
        of_writer = (read[name] if kind == "record" else read).cast("string")
        value = F.when(writer.wrote(key), of_writer).otherwise(value)
    return value


def _of_protobuf(name: str, key: Column, writers: tuple[WriterSchema, ...]) -> Column:
    """Returns the text of a message's one field (`name`, if given), text or whole number, by the schema that a key names."""
    value = F.lit(None).cast("string")
    for writer in writers:
        alone = {at: cols[0] for at, (_, cols) in writer.messages.items() if len(cols) == 1}
        single = {
            at: column
            for at, column in alone.items()
            if isinstance(column.dataType, _PROTOBUF) and name in ("", column.name)
        }
        for field in dict.fromkeys(single.values()):
            others = {at: "another key" for at in writer.messages if single.get(at) != field}
            result = StructType([field]).toNullable().add(CORRUPT, "string")
            in_arrow = to_arrow_type(result, timezone="UTC")
            reader = protobuf.Reader(writer.descriptors, others, in_arrow, True, "")
            read = F.arrow_udf(reader.rows, result)(F.when(writer.wrote(key), payload(key)))  # type: ignore[call-overload]
            value = F.coalesce(value, read[field.name].cast("string"))
    return value


def _kind(schema: str, name: str) -> str:
    """Returns the kind of key in a schema of Avro: a plain type, "record", or "" if it is not read."""
    parsed = json.loads(schema)
    kind = parsed if isinstance(parsed, str) else cast(dict, parsed).get("type", "")
    if kind == "record":
        fields = parsed["fields"]
        of_name = len(fields) == 1 and fields[0]["name"] == name
        return kind if of_name and _kind(json.dumps(fields[0]["type"]), name) in _AVRO else ""
    return kind if kind in _AVRO else ""
