"""Values of Protobuf as columns: the types of fields, and messages as Arrow, all of a batch at once.

Spark's Python workers import this module, so it imports nothing slow.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as T

from lakehouse.runtime.protobuf import Indexes, messages, split

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

_SCALARS: dict[str, T.DataType] = {  # by the names of FieldDescriptor.TYPE_...
    **dict.fromkeys(("INT32", "SINT32", "SFIXED32"), T.IntegerType()),
    **dict.fromkeys(("UINT32", "FIXED32", "INT64", "SINT64", "SFIXED64"), T.LongType()),
    **dict.fromkeys(("UINT64", "FIXED64"), T.DecimalType(20, 0)),
    "FLOAT": T.FloatType(),
    "DOUBLE": T.DoubleType(),
    "BOOL": T.BooleanType(),
    **dict.fromkeys(("STRING", "ENUM"), T.StringType()),
    "BYTES": T.BinaryType(),
}
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999
_LONGEST = 315_576_000_000  # seconds of a duration


class Recursive(T.DataType):
    """The type of a message that contains itself, which Spark cannot have."""

    def __init__(self, name: str) -> None:
        self.name = name

    def simpleString(self) -> str:
        return f"the message {self.name}, which has itself within,"


def columns(message: "Descriptor", within: frozenset[str] = frozenset()) -> T.StructType:
    """Returns the columns of a message, by the names of its fields."""
    within |= {message.full_name}
    schema = T.StructType()
    for field in message.fields:
        schema.add(field.name, _type(field, within))
    return schema


def _type(field: "FieldDescriptor", within: frozenset[str]) -> T.DataType:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        fields = message.fields_by_name
        return T.MapType(_one(fields["key"], within), _one(fields["value"], within))
    return T.ArrayType(_one(field, within)) if field.is_repeated else _one(field, within)


def _one(field: "FieldDescriptor", within: frozenset[str]) -> T.DataType:
    message = field.message_type
    if message is None:
        return _SCALARS[_kind(field)]
    if message.full_name in within:
        return Recursive(message.full_name)
    if well_known := _WELL_KNOWN.get(message.full_name):
        return well_known[0] or _SCALARS[_kind(message.fields_by_name["value"])]
    return columns(message, within)


def _kind(field: "FieldDescriptor") -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_")


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the values of one schema as the declared columns, whose types its messages have, or narrower ones.

    :param refused: messages that cannot be read as declared, with their reasons.
    :param result: the declared columns and, last, the problem of a value.
    :param strict: True if fields that the schema lacks are a problem, too.
    :param own: the beginning of each reason.
    """

    descriptors: bytes
    refused: Mapping[Indexes, str]
    result: pa.StructType
    strict: bool
    own: str

    def rows(self, payloads: pa.Array) -> pa.Array:
        """Returns payloads, which follow the schema's id, as rows: null for null."""
        parsed = [None if each is None else self._message(each) for each in payloads.to_pylist()]
        *fields, _ = self.result
        row_type = pa.struct(fields)
        groups: dict[Descriptor, list[int]] = {}
        for at, each in enumerate(parsed):
            if each is not None and not isinstance(each, str):
                groups.setdefault(each.DESCRIPTOR, []).append(at)
        parts = [pa.nulls(0, row_type)]
        order: list[int | None] = [None] * len(parsed)
        rows = 0
        for kind, places in groups.items():
            good, part = _as_far_as_they_are(parsed, places, kind, row_type)
            for row, at in enumerate(good):
                order[at] = rows + row
            rows += len(good)
            parts.append(part)
        columns = pa.concat_arrays(parts).take(pa.array(order, pa.int64())).flatten()
        why = [self.own + each if isinstance(each, str) else None for each in parsed]
        columns.append(pa.array(why, pa.string()))
        return pa.StructArray.from_arrays(columns, fields=list(self.result))

    def _message(self, payload: bytes) -> "Message | str":
        """Returns the message, or why there is none."""
        from google.protobuf.message import DecodeError

        try:
            indexes, content = split(payload)
        except ValueError as err:
            return str(err)
        kind = messages(self.descriptors).get(indexes)
        if kind is None:
            return f"it has no message with the index {list(indexes)}"
        if refused := self.refused.get(indexes):
            return refused
        name = kind.DESCRIPTOR.full_name
        try:
            message = kind.FromString(content)
        except DecodeError:
            return f"not Protobuf of the message {name}"
        if not message.IsInitialized():
            return f"message {name}: a required field is missing"
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size and (why := self._unknown(kind.FromString(content))):
            return f"message {name}: {why}"
        return message

    def _unknown(self, message: "Message") -> str:
        """Returns the problem with fields that the parser did not know; empty if they are none."""
        numbers = set()
        for kind, number in _unknown_fields(message):
            if number in kind.fields_by_number:
                field = kind.fields_by_number[number]
                return f"the value of {kind.name}.{field.name} is not of the schema's type"
            numbers.add(number)
        if self.strict and numbers:
            return f"fields not in the schema: {', '.join(map(str, sorted(numbers)))}"
        return ""


def _unknown_fields(message: "Message") -> "Iterator[tuple[Descriptor, int]]":
    from google.protobuf.unknown_fields import UnknownFieldSet

    for each in UnknownFieldSet(message):
        yield message.DESCRIPTOR, each.field_number
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is None:
                continue
            value = value.values()
        for part in value if field.is_repeated else [value]:
            yield from _unknown_fields(part)


def _as_far_as_they_are(
    parsed: "list[Message | str | None]",
    places: list[int],
    kind: "Descriptor",
    wanted: pa.StructType,
) -> tuple[list[int], pa.Array]:
    """Returns the places of messages that are rows, and the rows; replaces each other message by its problem."""
    of_places = [parsed[at] for at in places]
    try:
        return places, _struct(of_places, kind, wanted)
    except (ValueError, OverflowError, pa.ArrowException):
        pass
    for at in places:  # one by one: a bad message must not fail its batch
        try:
            _struct([parsed[at]], kind, wanted)
        except (ValueError, OverflowError, pa.ArrowException) as err:
            parsed[at] = f"message {kind.full_name}: {err}"
    good = [at for at in places if not isinstance(parsed[at], str)]
    return good, _struct([parsed[at] for at in good], kind, wanted)


def _struct(messages: Sequence[Any], kind: "Descriptor", wanted: pa.StructType) -> pa.Array:
    """Returns messages of one kind as structs."""
    fields = kind.fields_by_name
    parts = []
    for column in wanted:
        if column.name in fields:
            parts.append(_field(messages, fields[column.name], column.type))
        else:
            parts.append(pa.nulls(len(messages), column.type))
    return pa.StructArray.from_arrays(parts, fields=list(wanted))


def _field(messages: Sequence[Any], field: "FieldDescriptor", wanted: pa.DataType) -> pa.Array:
    """Returns the values of one field of messages."""
    name = field.name
    if not field.is_repeated:
        if field.has_presence:
            values = [getattr(m, name) if m.HasField(name) else None for m in messages]
        else:
            values = [getattr(m, name) for m in messages]
        return _values(values, field, wanted)
    many: list[Sequence[Any]]
    if pa.types.is_map(wanted):  # in one order, for the parser has none
        many = [sorted(getattr(m, name).items(), key=itemgetter(0)) for m in messages]
    else:
        many = [getattr(m, name) for m in messages]
    ends = pa.array([0, *accumulate(map(len, many))], pa.int32())
    flat = list(chain.from_iterable(many))
    if pa.types.is_map(wanted):
        entry = field.message_type.fields_by_name
        keys = _values([key for key, _ in flat], entry["key"], wanted.key_type)
        values_ = _values([value for _, value in flat], entry["value"], wanted.item_type)
        return pa.MapArray.from_arrays(ends, keys, values_, wanted)
    return pa.ListArray.from_arrays(ends, _values(flat, field, wanted.value_type), wanted)


def _values(values: Sequence[Any], field: "FieldDescriptor", wanted: pa.DataType) -> pa.Array:
    """Returns single values of a field, also of one that is repeated."""
    if field.enum_type is not None:
        names = {entry.number: entry.name for entry in reversed(field.enum_type.values)}
        return pa.array([None if v is None else names.get(v, str(v)) for v in values], wanted)
    message = field.message_type
    if message is None:
        return pa.array(values, wanted)
    if well_known := _WELL_KNOWN.get(message.full_name):
        plain = well_known[1]
        return pa.array([None if v is None else plain(v) for v in values], wanted)
    present = [v for v in values if v is not None]
    rows = _struct(present, message, wanted)
    if len(present) == len(values):
        return rows
    places = iter(range(len(present)))
    return rows.take(pa.array([None if v is None else next(places) for v in values], pa.int64()))


def _micros(value: Any) -> int:
    """Returns the microseconds of a Timestamp since 1970, rounded down."""
    if not (_FIRST_SECOND <= value.seconds <= _LAST_SECOND and 0 <= value.nanos < 10**9):
        raise ValueError(f"a Timestamp of {value.seconds} s and {value.nanos} ns is no instant")
    return value.seconds * 10**6 + value.nanos // 1000


def _seconds(value: Any) -> Decimal:
    """Returns the seconds of a Duration."""
    seconds, nanos = value.seconds, value.nanos
    if abs(seconds) > _LONGEST or abs(nanos) >= 10**9 or seconds * nanos < 0:
        raise ValueError(f"a Duration of {seconds} s and {nanos} ns is none")
    return Decimal(seconds * 10**9 + nanos).scaleb(-9)


_WRAPPERS = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_WELL_KNOWN: dict[str, tuple[T.DataType | None, Callable[[Any], Any]]] = {
    "google.protobuf.Timestamp": (T.TimestampType(), _micros),
    "google.protobuf.Duration": (T.DecimalType(21, 9), _seconds),
    **{f"google.protobuf.{each}Value": (None, attrgetter("value")) for each in _WRAPPERS},
}
"""Messages that are values: their type (None for a wrapper, which has that of its field), and the value."""
