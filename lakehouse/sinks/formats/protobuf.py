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
from lakehouse.storage.position.schemas import HEAD, Schema

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIME = "google.protobuf.Timestamp"
_KEYS = ("string", "bool", "int32", "int64")
_EPOCH, _MICRO = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def schema_of(table: str, columns: "pa.Schema", before: Schema | None = None) -> str:
    """The schema of a table's rows: a message of that name.

    :param before: the newest schema of the subject: what is in it keeps its number, and no number of it comes again for
        another column, for readers know fields by their numbers.
    :raises SinkError: for a column whose name or type Protobuf does not have.
    """
    known = before and before.type == "PROTOBUF" and _messages(before).get(FIRST)
    message = _message(table, columns, table, known.DESCRIPTOR if known else None)
    head = ['syntax = "proto3";', "", 'import "google/protobuf/timestamp.proto";', ""]
    text = "\n".join([*head, *message, ""])
    _messages(Schema(0, "PROTOBUF", text))
    return text


def encoder(text: str, number: int) -> Callable[[Row], bytes]:
    """What writes rows by a schema that has that id at the registry."""
    kind = _messages(Schema(0, "PROTOBUF", text))[FIRST]
    head = b"\0" + number.to_bytes(HEAD - 1) + b"\0"

    def encoded(row: Row) -> bytes:
        message = kind()
        _fill(message, row, kind.DESCRIPTOR.name)
        return head + message.SerializeToString(deterministic=True)

    return encoded


def decoded(value: bytes, schema: Schema) -> str:
    """A value, by its schema, as `encoding` writes its row (`as_held`). Raises ValueError if it is none."""
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
    """The row as a message holds it: it has no array or map that is null instead of empty, and no order in a map."""
    return {name: _held(value) for name, value in row.items()}


def _messages(schema: Schema) -> "Mapping[Indexes, type[Message]]":
    try:
        return messages(compiled(schema))
    except ValueError as err:
        raise SinkError(
            f"format='protobuf': protoc refuses the schema of the columns ({err}); rename the column, or publish as JSON or Avro"
        ) from err


def _message(
    name: str, columns: "pa.Schema | pa.StructType", place: str, known: "Descriptor | None"
) -> list[str]:
    """The lines of a message. `known`: the same message in the schema before."""
    numbers = {each.name: each.number for each in known.fields} if known else {}
    gone = [(each.start, each.end) for each in _described(known).reserved_range] if known else []
    names = {each.name for each in columns}
    gone += [(number, number + 1) for each, number in numbers.items() if each not in names]
    fresh = count(max([number + 1 for number in numbers.values()] + [end for _, end in gone] + [1]))
    ranges = [str(start) if end == start + 1 else f"{start} to {end - 1}" for start, end in gone]
    lines = [f"reserved {', '.join(ranges)};"] if gone else []
    for each in columns:
        at = f"{place}.{each.name}"
        if not _NAME.fullmatch(each.name):
            raise SinkError(
                f"column={at}: a name in Protobuf has letters, digits and '_', no digit first; rename the column, or publish "
                "as JSON"
            )
        before = known.fields_by_name.get(each.name) if known else None
        kind, within = _field(each.type, each.name, at, before.message_type if before else None)
        lines += within
        lines.append(f"{kind} {each.name} = {numbers.get(each.name) or next(fresh)};")
    return [f"message {name} {{", *(f"  {line}" for line in lines), "}"]


def _field(
    of: "pa.DataType", name: str, place: str, known: "Descriptor | None"
) -> tuple[str, list[str]]:
    """The type of a field with its label, and the lines of the message that it is of. `known`: its message before."""
    import pyarrow as pa

    if pa.types.is_map(of):
        key, _ = _type(of.key_type, name, place, None)
        if key not in _KEYS:
            raise SinkError(
                f"column={place}: keys of a map in Protobuf are text, whole numbers or booleans, and these are {of.key_type}; "
                "cast them, or publish as JSON"
            )
        value = known.fields_by_name.get("value") if known else None
        kind, within = _type(of.item_type, name, place, value.message_type if value else None)
        return f"map<{key}, {kind}>", within
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        kind, within = _type(of.value_type, name, place, known)
        return f"repeated {kind}", within
    kind, within = _type(of, name, place, known)
    return f"optional {kind}", within


def _type(
    of: "pa.DataType", name: str, place: str, known: "Descriptor | None"
) -> tuple[str, list[str]]:
    import pyarrow as pa

    if pa.types.is_struct(of):
        own = "".join(part.capitalize() for part in name.split("_"))
        return own, _message(own, of, place, known)
    kinds: dict[str, Callable[[Any], bool]] = {
        "bool": pa.types.is_boolean,
        "int64": pa.types.is_int64,
        "int32": pa.types.is_integer,
        "float": pa.types.is_float32,
        "double": pa.types.is_floating,
        "bytes": lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
        _TIME: lambda t: pa.types.is_timestamp(t) and t.tz is not None,
        "string": lambda t: (
            pa.types.is_string(t)
            or pa.types.is_large_string(t)
            or pa.types.is_decimal(t)
            or pa.types.is_date(t)
            or pa.types.is_timestamp(t)
        ),
    }
    found = next((kind for kind, fits in kinds.items() if fits(of)), None)
    if found is None:
        raise SinkError(
            f"column={place}: Protobuf has no type for {of} there; cast the column, or publish as JSON"
        )
    return found, []


def _described(message: "Descriptor") -> Any:
    from google.protobuf.descriptor_pb2 import DescriptorProto

    found = DescriptorProto()
    message.CopyToProto(found)
    return found


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
        many = getattr(message, name)
        if is_map := field.message_type is not None and field.message_type.GetOptions().map_entry:
            value, of = dict(value), field.message_type.fields_by_name["value"].message_type
        else:
            value, of = dict(enumerate(value)), field.message_type
        if None in value.values():
            raise SinkError(
                f"column={place}.{name}: an array or a map of Protobuf has no nulls in it, and one here has; leave them out "
                "in the table, or publish as JSON or Avro"
            )
        for key, part in value.items():
            if of is not None:
                _put(many[key] if is_map else many.add(), part, f"{place}.{name}")
            elif is_map:
                many[key] = _plain(part)
            else:
                many.append(_plain(part))


def _put(message: Any, value: Any, place: str) -> None:
    """Fills a message that stands for a value."""
    message.SetInParent()
    if message.DESCRIPTOR.full_name == _TIME:
        message.seconds, micros = divmod((value - _EPOCH) // _MICRO, 10**6)
        message.nanos = micros * 1000
    else:
        _fill(message, value, place)


def _plain(value: Any) -> Any:
    """The value as Protobuf has it: a decimal or a date is text, as in JSON."""
    return value if isinstance(value, str | bytes | int | float) else text_of(value)


def _row(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = {key: _value(part) for key, part in value.items()}
        elif field.is_repeated:
            found[field.name] = [_value(part) for part in value]
        else:
            there = not field.has_presence or message.HasField(field.name)
            found[field.name] = _value(value) if there else None
    return found


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
