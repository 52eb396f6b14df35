"""Rows as Protobuf with a schema registry: each column of a table is a field, and keeps its number from schema to schema.

A value begins with the byte 0, the four bytes of its schema's id and the index of its message
(Confluent's wire format).
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from lakehouse.declare.targets import Row
from lakehouse.errors import SinkError
from lakehouse.runtime.protobuf import FIRST, Indexes, compiled, messages, split
from lakehouse.sinks.formats.encoding import text_of, value_of
from lakehouse.sinks.formats.kinds import Kind, kind_of
from lakehouse.storage.position.schemas import HEAD, Schema

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIME = "google.protobuf.Timestamp"
_KEYS = ("string", "bool", "int32", "int64")
_PLAIN: dict[Kind | None, str] = {
    "boolean": "bool",
    "int64": "int64",
    "integer": "int32",
    "float32": "float",
    "floating": "double",
    "binary": "bytes",
    "string": "string",
    "decimal": "string",
    "date": "string",
}
_EPOCH, _MICRO = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def schema_of(table: str, columns: "pa.Schema", before: Schema | None = None) -> str:
    """Returns the schema of a table's rows: a message of that name.

    :param before: the newest schema of the subject. Its columns keep their numbers, and no other column gets one of
        them, because readers know fields by their numbers.
    :raises SinkError: for a column whose name or type Protobuf does not have.
    """
    former = before and before.type == "PROTOBUF" and _messages(before).get(FIRST)
    message = _message(table, columns, table, former.DESCRIPTOR if former else None)
    head = ['syntax = "proto3";', "", 'import "google/protobuf/timestamp.proto";', ""]
    text = "\n".join([*head, *message, ""])
    _messages(Schema(0, "PROTOBUF", text))
    return text


def encoder(text: str, number: int) -> Callable[[Row], bytes]:
    """Returns a function that writes rows by a schema, which has that id at the registry."""
    kind = _messages(Schema(0, "PROTOBUF", text))[FIRST]
    head = b"\0" + number.to_bytes(HEAD - 1) + b"\0"

    def encoded(row: Row) -> bytes:
        message = kind()
        _fill(message, row, kind.DESCRIPTOR.name)
        return head + message.SerializeToString(deterministic=True)

    return encoded


def decoded(value: bytes, schema: Schema) -> str:
    """Returns a value, by its schema, as `encoding` writes its row (`as_held`). Raises ValueError if it is none."""
    from google.protobuf.message import DecodeError

    indexes, content = split(value[HEAD:])
    kind = messages(compiled(schema)).get(indexes)
    if kind is None:
        raise ValueError(f"the schema has no message with the index {list(indexes)}")
    try:
        row = _row(kind.FromString(content))
    except (DecodeError, OverflowError, UnicodeDecodeError) as err:
        raise ValueError(f"it is not Protobuf of that schema: {err!r}") from err
    return value_of(as_held(row))


def as_held(row: Row) -> Row:
    """Returns the row as a message holds it: without arrays and maps that are null instead of empty, and maps unordered."""
    return {name: _held(value) for name, value in row.items()}


def _messages(schema: Schema) -> "Mapping[Indexes, type[Message]]":
    try:
        return messages(compiled(schema))
    except ValueError as err:
        raise SinkError(
            f"format='protobuf': protoc refuses the schema of the columns ({err}); rename the column, or publish as JSON or Avro"
        ) from err


def _message(
    name: str, columns: "pa.Schema | pa.StructType", place: str, before: "Descriptor | None"
) -> list[str]:
    """Returns the lines of a message. `before` is the same message in the former schema."""
    numbers = {field.name: field.number for field in before.fields} if before else {}
    gone = [(r.start, r.end) for r in _described(before).reserved_range] if before else []
    names = {column.name for column in columns}
    gone += [(number, number + 1) for field, number in numbers.items() if field not in names]
    fresh = count(max([number + 1 for number in numbers.values()] + [end for _, end in gone] + [1]))
    ranges = [str(start) if end == start + 1 else f"{start} to {end - 1}" for start, end in gone]
    lines = [f"reserved {', '.join(ranges)};"] if gone else []
    for column in columns:
        at = f"{place}.{column.name}"
        if not _NAME.fullmatch(column.name):
            raise SinkError(
                f"column={at}: a name in Protobuf has letters, digits and '_', no digit first; rename it, or publish as JSON"
            )
        field = before.fields_by_name.get(column.name) if before else None
        label, within = _field(column.type, column.name, at, field.message_type if field else None)
        lines += within
        lines.append(f"{label} {column.name} = {numbers.get(column.name) or next(fresh)};")
    return [f"message {name} {{", *(f"  {line}" for line in lines), "}"]


def _field(
    type_: "pa.DataType", name: str, place: str, before: "Descriptor | None"
) -> tuple[str, list[str]]:
    """Returns the type of a field with its label, and the lines of its own message, which was `before`."""
    kind = kind_of(type_)
    if kind == "map":
        key, _ = _type(type_.key_type, name, place, None)
        if key not in _KEYS:
            raise SinkError(
                f"column={place}: keys of a map in Protobuf are text, whole numbers or booleans, not {type_.key_type}; cast "
                "them, or publish as JSON"
            )
        value = before.fields_by_name.get("value") if before else None
        text, within = _type(type_.item_type, name, place, value.message_type if value else None)
        return f"map<{key}, {text}>", within
    text, within = _type(type_.value_type if kind == "list" else type_, name, place, before)
    return f"{'repeated' if kind == 'list' else 'optional'} {text}", within


def _type(
    type_: "pa.DataType", name: str, place: str, before: "Descriptor | None"
) -> tuple[str, list[str]]:
    kind = kind_of(type_)
    if kind == "struct":
        own = "".join(part.capitalize() for part in name.split("_"))
        return own, _message(own, type_, place, before)
    if kind == "timestamp":
        return _TIME if type_.tz else "string", []
    if kind not in _PLAIN:
        raise SinkError(
            f"column={place}: Protobuf has no type for {type_} there; cast the column, or publish as JSON"
        )
    return _PLAIN[kind], []


def _described(message: "Descriptor") -> Any:
    from google.protobuf.descriptor_pb2 import DescriptorProto

    proto = DescriptorProto()
    message.CopyToProto(proto)
    return proto


def _fill(message: Any, row: Mapping[str, Any], place: str) -> None:
    for field in message.DESCRIPTOR.fields:
        name, value = field.name, row[field.name]
        if value is None:
            continue
        if not field.is_repeated:
            if field.message_type is None:
                setattr(message, name, _plain(value))
            else:
                _put(getattr(message, name), value, f"{place}.{name}")
            continue
        parts = getattr(message, name)
        nested = field.message_type
        is_map = nested is not None and nested.GetOptions().map_entry
        if is_map:
            value, nested = dict(value), nested.fields_by_name["value"].message_type
        else:
            value = dict(enumerate(value))
        if None in value.values():
            raise SinkError(
                f"column={place}.{name}: an array or a map of Protobuf has no nulls; leave them out, or publish as JSON or Avro"
            )
        for key, part in value.items():
            if nested is not None:
                _put(parts[key] if is_map else parts.add(), part, f"{place}.{name}")
            elif is_map:
                parts[key] = _plain(part)
            else:
                parts.append(_plain(part))


def _put(message: Any, value: Any, place: str) -> None:
    """Fills the message of a value."""
    message.SetInParent()
    if message.DESCRIPTOR.full_name == _TIME:
        message.seconds, micros = divmod((value - _EPOCH) // _MICRO, 10**6)
        message.nanos = micros * 1000
    else:
        _fill(message, value, place)


def _plain(value: Any) -> Any:
    """Returns the value as Protobuf has it: a decimal or a date is text, as in JSON."""
    return value if isinstance(value, str | bytes | int | float) else text_of(value)


def _row(message: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            row[field.name] = {key: _value(part) for key, part in value.items()}
        elif field.is_repeated:
            row[field.name] = [_value(part) for part in value]
        elif not field.has_presence or message.HasField(field.name):
            row[field.name] = _value(value)
        else:
            row[field.name] = None
    return row


def _value(value: Any) -> Any:
    if not hasattr(value, "DESCRIPTOR"):
        return value
    if value.DESCRIPTOR.full_name == _TIME:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    return _row(value)


def _held(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _held(value[key]) for key in sorted(value)} or None
    return [_held(part) for part in value] or None if isinstance(value, list) else value
