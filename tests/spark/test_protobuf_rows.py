"""Rows as Protobuf: each type comes back as it was, and a field keeps its number."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from lakehouse.errors import SinkError
from lakehouse.runtime.protobuf import FIRST, compiled, messages
from lakehouse.sinks.formats import protobuf
from lakehouse.sinks.formats.encoding import value_of
from lakehouse.storage.position.schemas import Schema

POINT = pa.struct([("x", pa.decimal128(4, 1)), ("names", pa.list_(pa.string()))])
COLUMNS = pa.schema(
    [
        ("n", pa.int64()), ("small", pa.int16()), ("t", pa.string()), ("b", pa.bool_()), ("d", pa.float64()),
        ("f", pa.float32()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")),
        ("raw", pa.binary()), ("m", pa.decimal128(12, 3)), ("many", pa.list_(pa.int64())), ("part", POINT),
        ("some_parts", pa.list_(POINT)), ("by_name", pa.map_(pa.string(), pa.int64())),
        ("by_number", pa.map_(pa.int64(), POINT)), ("times", pa.map_(pa.bool_(), pa.timestamp("us", "UTC"))),
    ]
)  # fmt: skip
ROW = {
    "n": -(2**63), "small": 7, "t": "\u00fc \"\n", "b": False, "d": float("nan"), "f": 0.10000000149011612,
    "day": date(2026, 1, 2), "at": datetime(1969, 1, 2, 3, 4, 5, 678, UTC), "local": datetime(1969, 12, 31, 23, 59, 59, 999999),
    "raw": b"\x00\xff", "m": Decimal("-123456789.100"), "many": [1, 3],
    "part": {"x": Decimal("1.5"), "names": ["a", ""]}, "some_parts": [{"x": None, "names": []}],
    "by_name": {"b": 0, "a": 1}, "by_number": {-1: {"x": None, "names": None}},
    "times": {True: datetime(2026, 1, 2, tzinfo=UTC)},
}  # fmt: skip


def of(*columns: tuple[str, pa.DataType], before: str = "") -> str:
    known = Schema(1, "PROTOBUF", before) if before else None
    return protobuf.schema_of("payments", pa.schema(columns), known)


def test_a_row_of_every_type_comes_back_as_it_was():
    text = protobuf.schema_of("rows", COLUMNS)
    assert text.splitlines()[4:9] == [
        "message rows {", "  optional int64 n = 1;", "  optional int32 small = 2;", "  optional string t = 3;",
        "  optional bool b = 4;",
    ]  # fmt: skip
    for row in (ROW, dict.fromkeys(ROW)):
        value = protobuf.encoder(text, 258)(row)
        assert value[:6] == b"\0\0\0\1\2\0"
        held = value_of(protobuf.as_held(row))
        assert protobuf.decoded(value, Schema(258, "PROTOBUF", text)) == held
    held = protobuf.as_held({"a": [], "b": {"y": 1, "x": []}, "c": {}})
    assert held == {"a": None, "b": {"x": None, "y": 1}, "c": None}
    assert list(held["b"]) == ["x", "y"]


def test_what_is_no_protobuf_of_a_schema_is_said():
    text = of(("t", pa.string()))
    value, schema = protobuf.encoder(text, 1)({"t": "a"}), Schema(1, "PROTOBUF", text)
    for wrong in (value[:-1], value[:5] + b"\2\2" + value[6:], value[:5]):
        with pytest.raises(ValueError):
            protobuf.decoded(wrong, schema)
    many = protobuf.encoder(of(("m", pa.list_(pa.int64()))), 1)
    with pytest.raises(
        SinkError, match=r"column=payments\.m: an array or a map of Protobuf has no"
    ):
        many({"m": [1, None]})


def test_a_field_keeps_its_number_and_none_comes_again():
    part = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    first = of(("a", pa.int64()), ("part", part), ("c", pa.string()))
    second = of(
        ("new", pa.string()),
        ("c", pa.string()),
        ("part", pa.struct([("y", pa.int64())])),
        before=first,
    )
    third = of(("a", pa.int64()), ("c", pa.string()), ("part", part), before=second)
    numbers = [
        {field.full_name: field.number for kind in kinds.values() for field in kind.DESCRIPTOR.fields}
        for kinds in (messages(compiled(Schema(1, "PROTOBUF", text))) for text in (first, second, third))
    ]  # fmt: skip
    own = "payments."
    assert numbers == [
        {f"{own}a": 1, f"{own}part": 2, f"{own}c": 3, f"{own}Part.x": 1, f"{own}Part.y": 2},
        {f"{own}new": 4, f"{own}part": 2, f"{own}c": 3, f"{own}Part.y": 2},
        {f"{own}a": 5, f"{own}part": 2, f"{own}c": 3, f"{own}Part.x": 3, f"{own}Part.y": 2},
    ]
    assert "  reserved 1, 4;\n" in third
    assert of(("a", pa.int64()), ("c", pa.string()), ("part", part), before=third) == third
    assert FIRST in messages(compiled(Schema(1, "PROTOBUF", third)))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (("per cent", pa.int64()), "column=payments.per cent: a name in Protobuf has letters"),
        (("m", pa.map_(pa.float64(), pa.string())), "column=payments.m: keys of a map in Protobuf"),
        (("t", pa.time64("us")), r"column=payments.t: Protobuf has no type for time64\[us\]"),
        (("s", pa.struct([("a b", pa.int64())])), "column=payments.s.a b: a name in Protobuf"),
        (("l", pa.list_(pa.list_(pa.int64()))), "column=payments.l: Protobuf has no type for list"),
        (("m", pa.map_(pa.string(), pa.list_(pa.int64()))), "column=payments.m: Protobuf has no"),
        (("Part", pa.struct([("x", pa.int64())])), "protoc refuses the schema .* already defined"),
    ],
)
def test_a_column_that_protobuf_does_not_have_is_refused(column, said):
    with pytest.raises(SinkError, match=said):
        of(column)
