"""Values of Protobuf: each type of a field, and what is none of the declared columns."""

import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import ingest_table, kafka, tumbling, window_table
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import RegistryAway
from lakehouse.maintenance import replay_quarantine
from lakehouse.runtime.protobuf import compiled, messages
from lakehouse.settings import Settings
from lakehouse.storage.position.schemas import Schema
from lakehouse.storage.session import Session
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform.decoding import decode, protobuf, schemas
from support.schema_registry import framed, served
from support.schema_registry import protobuf as sent

ALL = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "shop/kinds.proto";

message All {
  int32 i = 1; uint32 u = 2; int64 l = 3; uint64 ul = 4; sint64 sl = 5; fixed64 fl = 6; sfixed32 si = 7;
  float f = 8; double d = 9; bool b = 10; string t = 11; bytes raw = 12; Kind kind = 13;
  google.protobuf.Timestamp at = 14; google.protobuf.Duration took = 15;
  google.protobuf.UInt64Value wrapped = 16; google.protobuf.StringValue wrapped_text = 17;
  Inner one = 18; repeated Inner many = 19; repeated int64 numbers = 20; repeated Kind kinds = 21;
  map<string, int64> by_name = 22; map<uint64, Inner> by_number = 23;
  optional int64 maybe = 24; oneof either { string left = 25; Inner right = 26; }
  Node node = 27;
  message Inner { int32 n = 1; Inner2 deep = 2; message Inner2 { string t = 1; } }
}
message Node { int32 n = 1; repeated Node next = 2; }
"""
KINDS = 'syntax = "proto3"; package shop; enum Kind { NONE = 0; SOME = 1; }'
SCHEMA = Schema(7, "PROTOBUF", ALL, (("shop/kinds.proto", KINDS),))
INNER = "STRUCT<n: INT, deep: STRUCT<t: STRING>>"
COLUMNS = f"""i INT, u BIGINT, l BIGINT, ul DECIMAL(20,0), sl BIGINT, fl DECIMAL(20,0), si INT, f FLOAT, d DOUBLE, b BOOLEAN,
t STRING, raw BINARY, kind STRING, at TIMESTAMP, took DECIMAL(21,9), wrapped DECIMAL(20,0), wrapped_text STRING, one {INNER},
many ARRAY<{INNER}>, numbers ARRAY<BIGINT>, kinds ARRAY<STRING>, by_name MAP<STRING, BIGINT>,
by_number MAP<DECIMAL(20,0), {INNER}>, maybe BIGINT, left STRING, right {INNER}"""

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)


order_topic = kafka(
    "orders",
    format="protobuf",
    schema="id STRING NOT NULL, shop STRING, cents DECIMAL(20,0), at TIMESTAMP NOT NULL",
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def orders(order_topic: DataFrame) -> DataFrame:
    return order_topic


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["shop"])
def turnover(orders: DataFrame) -> DataFrame:
    return orders.groupBy("window", "shop").agg(
        F.sum("cents").alias("cents"), F.count(F.lit(1)).alias("n")
    )


@cache
def kinds(schema: Schema = SCHEMA):
    return messages(compiled(schema))


def read(spark, columns: str, *values: bytes | None, of: Schema = SCHEMA, **options) -> list[dict]:
    """The rows that a topic of these values gives, with `problem`."""
    raw = pa.table(
        {
            "key": [b"k"] * len(values),
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([0] * len(values), pa.int32()),
            "offset": range(len(values)),
            "timestamp": pa.array([START] * len(values), pa.timestamp("us", "UTC")),
        }
    )
    source = kafka("t", format="protobuf", schema=columns, **options)
    known = schemas.Schemas({of.id: schemas._read(spark, of)})
    rows = decode.decoded(spark.createDataFrame(raw), source, known)
    rows = rows.select("*", "_record.problem").drop("_record")
    return rows.toArrow().to_pylist()


def test_each_type_of_a_field_has_its_own(spark):
    found = protobuf.columns(kinds()[(0,)].DESCRIPTOR)
    assert str(found[:-1]) == str(StructType.fromDDL(COLUMNS))
    All = kinds()[(0,)]
    full = All(
        i=-(2**31), u=2**32 - 1, l=-(2**63), ul=2**64 - 1, sl=2**63 - 1, fl=2**64 - 1, si=-1, f=0.1, d=0.1, b=True,
        t="\u00fc", raw=b"\0\xff", kind=1, wrapped={"value": 2**64 - 1}, wrapped_text={}, one={"n": 1, "deep": {"t": "x"}},
        many=[{"n": 2}, {}], numbers=[1, 2], kinds=[0, 1, 9], by_name={"b": 1, "a": 2}, by_number={2**64 - 1: {"n": 3}},
        maybe=0, right={},
    )  # fmt: skip
    full.at.seconds, full.at.nanos = -1, 999_999_999
    full.took.seconds, full.took.nanos = -315_576_000_000, -1
    row, empty, none = read(spark, COLUMNS, sent(7, full), framed(7, b"\0"), None)
    assert row == {
        "i": -(2**31), "u": 2**32 - 1, "l": -(2**63), "ul": 2**64 - 1, "sl": 2**63 - 1, "fl": 2**64 - 1, "si": -1,
        "f": pytest.approx(0.1), "d": 0.1, "b": True, "t": "\u00fc", "raw": b"\0\xff", "kind": "SOME",
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "took": Decimal("-315576000000.000000001"),
        "wrapped": 2**64 - 1, "wrapped_text": "", "one": {"n": 1, "deep": {"t": "x"}},
        "many": [{"n": 2, "deep": None}, {"n": 0, "deep": None}], "numbers": [1, 2], "kinds": ["NONE", "SOME", "9"],
        "by_name": [("a", 2), ("b", 1)], "by_number": [(2**64 - 1, {"n": 3, "deep": None})],
        "maybe": 0, "left": None, "right": {"n": 0, "deep": None}, "problem": None,
    }  # fmt: skip
    zero = {
        "i": 0, "u": 0, "l": 0, "ul": 0, "sl": 0, "fl": 0, "si": 0, "f": 0.0, "d": 0.0, "b": False, "t": "", "raw": b"",
        "kind": "NONE", "many": [], "numbers": [], "kinds": [], "by_name": [], "by_number": [],
    }  # fmt: skip
    assert empty == dict.fromkeys(row) | zero
    assert none == dict.fromkeys(row) | {"problem": "empty value (tombstone)"}


def test_what_is_none_of_the_declared_columns_has_its_reason(spark):
    text = """
        syntax = "proto2";
        message Order {
          required string id = 1; optional int64 cents = 2; optional Size size = 3; optional Node node = 4;
          map<string, Price> prices = 5;
          enum Size { S = 0; }
          message Price { optional int32 n = 1; } message Note { optional string id = 1; }
        }
        message Other { optional string cents = 1; }
        message Node { optional Node next = 1; }
        message Taken { optional string id = 1; optional Stamp cents = 9; message Stamp { optional int64 n = 1; } }
    """
    schema = Schema(7, "PROTOBUF", text)
    Order, Other = kinds(schema)[(0,)], kinds(schema)[(1,)]
    assert {at: each.DESCRIPTOR.full_name for at, each in kinds(schema).items()} == {
        (0,): "Order", (0, 0): "Order.Price", (0, 2): "Order.Note", (1,): "Other", (2,): "Node",
        (3,): "Taken", (3, 0): "Taken.Stamp",
    }  # fmt: skip
    good = sent(7, Order(id="a", cents=1))
    cases = {
        good: None,
        sent(7, Order(id="b"), 0): None,  # the long form
        good[:5]: "no message index follows the id",
        good[:5] + b"\x04\x00": "no message index follows the id",
        good[:5] + b"\x01\x00": "no message index follows the id",
        sent(7, Order(id="c"), 9): "it has no message with the index [9]",
        sent(7, Order(id="c"), 0, 1): "it has no message with the index [0, 1]",
        sent(7, Other(), 1): "message Other: cents is string there, and declared as bigint",
        good[:-1]: "not Protobuf of the message Order",
        good + b"\x10": "not Protobuf of the message Order",
        framed(7, b"\0"): "message Order: a required field is missing",
        framed(
            7, b"\0\x0a\x01\xff"
        ): "message Order: Could not convert b'\\xff' with type bytes: was not a utf8 string",
        good + b"\x12\x01x": "message Order: the value of Order.cents is not of the schema's type",
        good + b"\x18\x05": "message Order: the value of Order.size is not of the schema's type",
        good + b"\x2a\x05\x0a\x01x\x12\x00": None,
        good + b"\x98\x06\x05": None,
    }
    found = read(spark, "id STRING NOT NULL, cents BIGINT", *cases, of=schema)
    assert [each["problem"] for each in found] == [
        why and f"schema id=7: {why}" for why in cases.values()
    ]
    assert found[0] == {"id": "a", "cents": 1, "problem": None}


def test_fields_that_spark_has_no_type_for_and_values_that_are_none_have_their_reason(spark):
    All = kinds()[(0,)]
    late, short = All(i=1), All(i=2)
    late.at.seconds = 1 << 60
    short.took.seconds, short.took.nanos = 1, -1
    values = [sent(7, late), sent(7, short), sent(7, All(i=3))]
    found = read(spark, "i INT, at TIMESTAMP, took DECIMAL(21,9), node STRUCT<n: INT>", *values)
    own = "schema id=7: message shop.All: "
    assert [(each["i"], each["problem"]) for each in found] == [
        (None, f"{own}a Timestamp of 1152921504606846976 s and 0 ns is no instant"),
        (None, f"{own}a Duration of 1 s and -1 ns is none"),
        (3, None),
    ]
    within = "node STRUCT<n: INT, next: ARRAY<STRUCT<n: INT>>>"
    (found,) = read(spark, within, sent(7, All()))
    itself = "node.next[] is the message shop.Node, which has itself within, there, and declared as struct<n:int>"
    assert found["problem"] == f"{own}{itself}"


def test_with_unknown_fields_quarantined_so_are_those_of_a_newer_schema(spark):
    schema = Schema(7, "PROTOBUF", 'syntax = "proto3"; message Order { string id = 1; }')
    value = sent(7, kinds(schema)[(0,)](id="a"))
    found = read(
        spark, "id STRING", value, value + b"\x98\x06\x05", of=schema, unknown_fields="quarantine"
    )
    assert [each["problem"] for each in found] == [
        None,
        "schema id=7: message Order: fields not in the schema: 99",
    ]


@pytest.mark.parametrize(
    ("text", "imports", "said"),
    [
        ('import "a/b.proto"; message A { }', (), "a/b.proto: File not found."),
        ("message A { int32 a = 1 }", (), 'line 1:44: Expected ";".'),
        ("message A { }", (("../b.proto", ""),), "it refers to '../b.proto'"),
        ("", (), "it has no message"),
    ],
)
def test_a_schema_that_cannot_be_read_says_why(text, imports, said):
    found = schemas._read(None, Schema(1, "PROTOBUF", f'syntax = "proto3"; {text}', imports))
    assert said in found.problem and not found.messages


HEAD = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
FIRST = (
    HEAD + "message Order { string id = 1; uint32 cents = 2; google.protobuf.Timestamp at = 3; }"
)
SECOND = (
    f'{HEAD} import "shop.proto"; message Note {{ string t = 1; }} message Order {{ google.protobuf.Timestamp at = 1; '
    "string id = 2; shop.Shop shop = 3; optional uint64 cents = 4; }"
)
SHOP = 'syntax = "proto3"; package shop; enum Shop { NONE = 0; a = 1; }'


@pytest.mark.slow
@pytest.mark.parallel
def test_stream_equals_batch_over_versions_poison_a_crash_and_a_schema_that_comes_later(
    spark, tmp_path
):
    ours = (("shop.proto", SHOP),)
    one = kinds(Schema(1, "PROTOBUF", FIRST))[(0,)]
    two = kinds(Schema(2, "PROTOBUF", SECOND, ours))[(1,)]

    def value(number: int, name: str, minute: float, cents: int = 1) -> bytes:
        found = one(id=name, cents=cents) if number == 1 else two(id=name, cents=cents, shop=1)
        found.at.FromDatetime(START + timedelta(minutes=minute))
        return sent(1, found) if number == 1 else sent(2, found, 1)

    with served() as known:
        known.register(1, FIRST, "orders-value", schemaType="PROTOBUF")
        stage = Stage(spark, tmp_path / "root", HERE, registry={"url": known.url})
        stage._now = datetime(2026, 1, 2, tzinfo=UTC)
        poison = [value(1, "cut", 3)[:-1], value(2, "later", 4, 2**64 - 1), value(1, "no", 3)[:5]]
        stage.feed("orders", [value(1, "a", 1), *poison, value(1, "b", 2)], abort_at="rows")
        shop = {"name": "shop.proto", "subject": "shops", "version": 1}
        known.register(5, SHOP, "shops", schemaType="PROTOBUF")
        known.register(2, SECOND, "orders-value", schemaType="PROTOBUF", references=[shop])
        stage.feed("orders", [value(2, "c", 12), value(1, "d", 13), value(2, "x", 200)])
        known.away = True  # both schemas are kept
        stage.feed("orders", [value(1, "late", 2, 100), value(2, "e", 205)])
        with pytest.raises(RegistryAway, match="HTTP 503"):
            stage.feed("orders", [sent(3, one())])
        stage.run("turnover", files_per_batch=1, abort_at="rows")
        reasons = Counter(r.reason for r in stage.rows("orders", "quarantine").collect())
        assert reasons == {
            "schema id=1: not Protobuf of the message Order": 1,
            "schema id=1: no message index follows the id": 1,
            "schema id=2: the registry does not know it": 1,
        }
        found = {r.id: (r.shop, r.cents) for r in stage.rows("orders").collect()}
        assert found["a"] == (None, 1) and found["c"] == ("a", 1)
        assert_stream_equals_batch(stage, "turnover")
        assert (
            replay_quarantine.replay(stage.session, stage.session.catalog.table("orders")).rows == 1
        )
        (later,) = stage.rows("orders").where("id = 'later'").collect()
        assert later.cents == 2**64 - 1, "by the schema that is kept: the registry is away"


def test_validate_asks_whether_one_message_of_the_newest_schema_can_be_read(spark, tmp_path):
    with served() as known:
        settings = Settings(root=tmp_path, tables=(__name__,), registry={"url": known.url})
        session = Session(settings, catalog_of([HERE]), spark)
        asked = session, session.catalog.table("orders"), session.catalog.sources["order_topic"]
        known.register(1, FIRST, "orders-value", schemaType="PROTOBUF")
        assert schemas.refusal(*asked) == ""
        text = 'syntax = "proto3"; message Note { string t = 1; } message Order { string id = 1; string cents = 2; }'
        known.register(2, text, "orders-value", schemaType="PROTOBUF")
        assert schemas.refusal(*asked).startswith(
            "topic=orders, subject=orders-value, schema id=2: message Note: it has no field id, which is declared NOT NULL; "
        )
        shop = {"name": "shop.proto", "subject": "shops", "version": 1}
        known.register(3, SECOND, "orders-value", schemaType="PROTOBUF", references=[shop])
        assert schemas.refusal(*asked) == "", (
            "it refers to a schema that the registry does not know"
        )
        known.register(5, SHOP, "shops", schemaType="PROTOBUF")
        assert schemas.refusal(*asked) == ""
