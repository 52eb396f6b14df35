"""Rows as Avro: each type comes back as it was, and what Avro does not have is refused."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from lakehouse.errors import SinkError
from lakehouse.sinks.formats import avro
from lakehouse.sinks.formats.encoding import value_of
from lakehouse.storage.position.schemas import number_of

POINT = pa.struct([("x", pa.decimal128(4, 1)), ("names", pa.list_(pa.string()))])
COLUMNS = pa.schema(
    [
        ("n", pa.int64()), ("small", pa.int16()), ("t", pa.string()), ("b", pa.bool_()), ("d", pa.float64()),
        ("f", pa.float32()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")),
        ("raw", pa.binary()), ("m", pa.decimal128(12, 3)), ("many", pa.list_(pa.int64())), ("part", POINT),
        ("parts", pa.list_(POINT)), ("by_name", pa.map_(pa.string(), pa.int64())),
    ]
)  # fmt: skip
ROW = {
    "n": -1, "small": 7, "t": "\u00fc \"\n", "b": False, "d": 0.1, "f": 0.5, "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC), "local": datetime(1969, 12, 31, 23, 59, 59, 999999),
    "raw": b"\x00\xff", "m": Decimal("-123456789.100"), "many": [1, None, 3],
    "part": {"x": Decimal("1.5"), "names": ["a", None]}, "parts": [{"x": None, "names": None}, None],
    "by_name": {"a": 1, "b": None},
}  # fmt: skip


@pytest.mark.parametrize("row", [ROW, dict.fromkeys(ROW)])
def test_a_row_of_every_type_comes_back_as_it_was(row):
    schema = avro.schema_of("rows", COLUMNS)
    value = avro.encoder(schema, 258)(row)
    assert value[:5] == b"\0\0\0\1\2" and number_of(value) == 258
    assert avro.decoded(value, json.dumps(schema)) == value_of(row)


def test_what_is_no_avro_of_a_schema_is_said():
    schema = avro.schema_of("rows", pa.schema([("t", pa.string())]))
    value, text = avro.encoder(schema, 1)({"t": "a"}), json.dumps(schema)
    assert number_of(b"\1\0\0\0\1") is None is number_of(b"\0\0")
    for wrong in (value[:-1], value + b"\0"):
        with pytest.raises(ValueError, match="of that schema"):
            avro.decoded(wrong, text)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (("per cent", pa.int64()), "column=rows.per cent: a name in Avro has letters"),
        (("m", pa.map_(pa.int64(), pa.string())), "column=rows.m: keys of a map in Avro are text"),
        (("t", pa.time64("us")), r"column=rows.t: Avro has no type for time64\[us\]"),
        (("s", pa.struct([("a b", pa.int64())])), "column=rows.s.a b: a name in Avro"),
    ],
)
def test_a_column_that_avro_does_not_have_is_refused(column, said):
    with pytest.raises(SinkError, match=said):
        avro.schema_of("rows", pa.schema([column]))
