"""Values whose schemas are in a registry: several versions at once, poison, crashes, a registry that is away, replay."""

import json
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import ingest_table, kafka, tumbling, window_table
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import RegistryAway, SettingsError
from lakehouse.maintenance import replay_quarantine
from lakehouse.settings import Settings
from lakehouse.sinks.formats import avro as written
from lakehouse.storage.position.schemas import Schema, keep
from lakehouse.storage.session import Session
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform.decoding import decode, schemas
from support.schema_registry import Served, avro, framed, record, served

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
FIRST = record(("id", "string"), ("cents", "int"), ("at", MILLIS))
SECOND = record(
    ("at", MICROS), ("shop", ["null", "string"]), ("cents", ["null", "long"]), ("id", "string")
)
WRONG = record(("id", "string"), ("cents", "string"), ("at", MILLIS))
THIRD = record(("id", "string"), ("cents", "int"), ("at", MILLIS), ("note", "string"))

order_topic = kafka(
    "orders",
    format="avro",
    schema="id STRING NOT NULL, shop STRING, cents BIGINT, at TIMESTAMP NOT NULL",
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def orders(order_topic: DataFrame) -> DataFrame:
    return order_topic


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["shop"])
def turnover(orders: DataFrame) -> DataFrame:
    return orders.groupBy("window", "shop").agg(
        F.sum("cents").alias("cents"), F.count(F.lit(1)).alias("n")
    )


@pytest.fixture
def known():
    with served() as known:
        for number, schema in ((1, FIRST), (2, SECOND), (3, WRONG)):
            known.register(number, schema, "orders-value")
        yield known


def first(name: str, minute: float, cents: int = 1) -> bytes:
    return avro(1, FIRST, name, cents, millis(minute))


def second(name: str, minute: float, cents: int | None = 10, shop: str | None = "a") -> bytes:
    return avro(2, SECOND, millis(minute) * 1000, shop, cents, name)


def third(name: str, minute: float) -> bytes:
    return avro(4, THIRD, name, 7, millis(minute), "new")


def millis(minute: float) -> int:
    return int((START + timedelta(minutes=minute)).timestamp() * 1000)


def read_by(schema: object, kind: str = "AVRO", number: int = 1) -> Schema:
    return Schema(number, kind, json.dumps(schema))


def decoded(spark, source, value: bytes, *of: Schema) -> list:
    """Rows that a topic of this one value gives, the ids of schemas in it known."""
    raw = pa.table(
        {
            "key": [b"k"],
            "value": pa.array([value], pa.binary()),
            "partition": pa.array([0], pa.int32()),
            "offset": [0],
            "timestamp": pa.array([START], pa.timestamp("us", "UTC")),
        }
    )
    known = schemas.Schemas({each.id: schemas._read(spark, each) for each in of})
    return decode.decoded(spark.createDataFrame(raw), source, known).collect()


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
def test_stream_equals_batch_over_versions_poison_crashes_and_a_schema_that_comes_later(
    spark, tmp_path, known: Served
):
    stage = Stage(spark, tmp_path / "root", HERE, registry={"url": known.url})
    stage._now = datetime(2026, 1, 2, tzinfo=UTC)
    poison = [
        b"\1" + first("magic", 3)[1:],
        first("cut", 3)[:8],
        avro(3, WRONG, "wrong", "1", millis(3)),
        third("later", 4),
        b"\0\0",
        None,
    ]
    stage.feed("orders", [first("a", 1), second("b", 2), *poison, first("c", 3)], abort_at="rows")
    stage.feed("orders", [second("d", 12, None), third("late too", 5)], abort_at="quarantine")
    asked = len(known.asked)
    stage.advance("orders", second("x", 40))
    known.away = True
    stage.feed(
        "orders", [first("late", 2, 1000), second("e", 45, 30, None)]
    )  # their schemas are kept
    assert len(known.asked) == asked
    written = stage.rows("orders").count()
    with pytest.raises(RegistryAway, match=r"registry=http.*/schemas/ids/3: .*HTTP 503"):
        stage.feed("orders", [third("waits", 46), first("waits", 46)])
    assert stage.rows("orders").count() == written, "nothing of a batch that waits is written"
    stage.run("turnover", files_per_batch=1, abort_at="rows")
    reasons = Counter(r.reason for r in stage.rows("orders", "quarantine").collect())
    framing = "no schema id: the value does not begin with the byte 0 and four bytes of an id"
    assert reasons == {
        framing: 2,
        "empty value (tombstone)": 1,
        "schema id=1: not Avro of that schema": 1,
        "schema id=3: cents is string there, and declared as bigint": 1,
        "schema id=4: the registry does not know it": 2,
    }
    found = {r.id: (r.shop, r.cents) for r in stage.rows("orders").collect()}
    assert found["a"] == (None, 1) and found["b"] == ("a", 10) and found["d"] == ("a", None)
    assert stage.rows("orders").where("id = 'a'").head().at == datetime(2026, 1, 1, 0, 1)
    windows = {
        (r.window.start.minute, r.shop): (r.cents, r.n) for r in stage.rows("turnover").collect()
    }
    assert windows[0, None] == (2, 2) and windows[0, "a"] == (10, 1), "the late row is none of them"
    assert_stream_equals_batch(stage, "turnover")

    known.away = False
    known.register(4, THIRD, "orders-value")
    stage._now += timedelta(hours=3)
    stage.advance("orders", second("y", 200))
    stage.run("turnover")
    assert replay_quarantine.replay(stage.session, stage.session.catalog.table("orders")).rows == 2
    known.away = True
    assert (
        replay_quarantine.planned(stage.session, stage.session.catalog.table("orders")).rows == 0
    ), "once, and no schema is asked for again"
    (again,) = stage.rows("turnover").where("shop IS NULL AND minute(window.start) = 0").collect()
    assert (again.cents, again.n) == (16, 4)
    assert_stream_equals_batch(stage, "turnover")


def test_nested_values_are_read_by_name_and_widened(spark):
    inner = record(("n", "int"), ("gone", "string"), name="inner")
    schema = record(
        ("kind", {"type": "enum", "name": "kind", "symbols": ["x", "y"]}),
        ("one", ["null", inner]),
        ("many", {"type": "array", "items": {**inner, "name": "element"}}),
        ("by_name", {"type": "map", "values": "float"}),
        ("amount", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}),
        ("day", {"type": "int", "logicalType": "date"}),
    )
    one = {"n": 1, "gone": "-"}
    value = avro(1, schema, "y", None, [one, {**one, "n": 2}], {"a": 0.5}, b"\x30\x39", 1)
    source = kafka(
        "t",
        format="avro",
        schema="kind STRING, one STRUCT<n: BIGINT>, many ARRAY<STRUCT<other: STRING, n: BIGINT>>, "
        "by_name MAP<STRING, DOUBLE>, amount DECIMAL(8, 3), day DATE, missing INT",
    )
    (row,) = decoded(spark, source, value, read_by(schema))
    assert row["_record"].problem is None
    assert (row.kind, row.one, row.missing, str(row.day)) == ("y", None, None, "1970-01-02")
    assert [tuple(each) for each in row.many] == [(None, 1), (None, 2)]
    assert (row.by_name, str(row.amount)) == ({"a": 0.5}, "123.450")


@pytest.mark.parametrize(
    ("value", "kind", "problem"),
    [
        (b'{"id": "a", "n": 1}', "JSON", None),
        (
            b'{"id": "a", "n": "x"}',
            "JSON",
            'schema id=1: not a JSON object of the declared types: field=n: declared INT, got "x"',
        ),
        (b'{"n": 1}', "JSON", "missing field: id"),
        (
            b'{"id": "\xff"}',
            "JSON",
            "schema id=1: not a JSON object of the declared types: it is not UTF-8",
        ),
        (
            b"",
            "AVRO",
            "schema id=1: it is of type AVRO, and format='json_schema' is declared",
        ),
    ],
)
def test_json_schema(spark, value, kind, problem):
    source = kafka("t", format="json_schema", schema="id STRING NOT NULL, n INT")
    schema = read_by(FIRST if kind == "AVRO" else {"type": "object"}, kind)
    (row,) = decoded(spark, source, framed(1, value), schema)
    assert row["_record"].problem == problem


def test_schemas_that_spark_cannot_read_and_fields_that_are_not_declared_have_their_reason(spark):
    strict = replace(order_topic, unknown_fields="quarantine")
    node = record(("next", ["null", "order"]))
    cases = [
        (order_topic, "string", "it is no record, and has no fields"),
        (order_topic, node, "Spark cannot read the schema: "),
        (strict, THIRD, "fields not declared: note"),
    ]
    for source, schema, problem in cases:
        (row,) = decoded(spark, source, framed(1, b""), read_by(schema))
        assert row["_record"].problem.startswith(f"schema id=1: {problem}")


def test_a_deletion_of_a_compacted_topic_has_no_schema(spark):
    source = kafka("t", format="avro", key="id", schema="id STRING NOT NULL, cents BIGINT")
    (row,) = decoded(spark, source, None)
    assert (row.id, row.deleted, row["_record"].problem) == ("k", True, None)


def test_validate_asks_whether_the_newest_schema_can_be_read(spark, tmp_path, known: Served):
    settings = Settings(root=tmp_path, tables=(__name__,), registry={"url": known.url})
    session = Session(settings, catalog_of([HERE]), spark)
    source = session.catalog.sources["order_topic"]
    refused = schemas.refusal(session, session.catalog.table("orders"), source)
    assert refused.startswith(
        "topic=orders, subject=orders-value, schema id=3: cents is string there, and declared as bigint; its messages"
    )
    known.register(2, SECOND, "orders-value")
    assert schemas.refusal(session, session.catalog.table("orders"), source) == ""
    known.register(5, record(("id", "string")), "orders-value")
    assert "it has no field at, which is declared NOT NULL" in schemas.refusal(
        session, session.catalog.table("orders"), source
    )
    assert (
        schemas.refusal(session, session.catalog.table("orders"), replace(source, address="none"))
        == ""
    )
    keep(session.settings, session.catalog.table("orders"), read_by(SECOND))
    with pytest.raises(SettingsError, match=r"schema id=1: .* this is another registry"):
        schemas.refusal(session, session.catalog.table("orders"), source)


def test_a_type_is_read_where_no_value_changes(spark):
    cases = [
        ("a INT", "a BIGINT", ""),
        ("a INT NOT NULL", "a DECIMAL(10, 0)", ""),
        ("a INT", "a DECIMAL(9, 0)", "a is int there, and declared as decimal(9,0)"),
        ("a DECIMAL(5, 2)", "a DECIMAL(6, 3)", ""),
        ("a DECIMAL(5, 2)", "a DECIMAL(6, 1)", "a is decimal(5,2) there"),
        ("a BIGINT", "a INT", "a is bigint there, and declared as int"),
        ("a BIGINT", "a DOUBLE", "a is bigint there"),
        ("a FLOAT", "a DOUBLE", ""),
        ("a BIGINT", "a TIMESTAMP", "a is bigint there, and declared as timestamp"),
        ("b INT", "a INT", ""),
        ("A INT", "a STRING", ""),
        ("a STRUCT<b: ARRAY<INT>>", "a STRUCT<b: ARRAY<BIGINT>, c: INT>", ""),
        ("a STRUCT<b: ARRAY<STRING>>", "a STRUCT<b: ARRAY<INT>>", "a.b[] is string there"),
        ("a MAP<STRING, INT>", "a MAP<STRING, STRING>", "a[] is int there"),
        ("a MAP<STRING, INT>", "a ARRAY<INT>", "a is map<string,int> there"),
    ]
    for there, declared, problem in cases:
        found = schemas.apart(StructType.fromDDL(there), StructType.fromDDL(declared))
        assert found.startswith(problem) and bool(found) == bool(problem), (there, declared, found)


def test_what_is_published_as_avro_is_read_as_it_was(spark):
    """By Spark, as a pipeline reads it that another one publishes for."""
    columns = pa.schema(
        [
            ("n", pa.int64()), ("t", pa.string()), ("b", pa.bool_()), ("d", pa.float64()), ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")), ("m", pa.decimal128(12, 3)), ("many", pa.list_(pa.int64())),
            ("part", pa.struct([("x", pa.decimal128(4, 1))])), ("by_name", pa.map_(pa.string(), pa.int64())),
        ]
    )  # fmt: skip
    row = {
        "n": 1, "t": "\u00fc", "b": True, "d": 0.1, "day": START.date(), "at": START, "m": Decimal("-9.100"),
        "many": [1, 2], "part": {"x": Decimal("1.5")}, "by_name": {"a": 1},
    }  # fmt: skip
    schema = written.schema_of("payments", columns)
    source = kafka(
        "payments",
        format="avro",
        schema="n BIGINT, t STRING, b BOOLEAN, d DOUBLE, day DATE, at TIMESTAMP, m DECIMAL(12,3), many ARRAY<BIGINT>, "
        "part STRUCT<x: DECIMAL(4,1)>, by_name MAP<STRING, BIGINT>",
    )
    for given in (row, dict.fromkeys(row)):
        (found,) = decoded(spark, source, written.encoder(schema, 1)(given), read_by(schema))
        value = found.asDict(recursive=True)
        for name, wanted in given.items():
            if name == "at" and wanted:
                assert value[name].astimezone(UTC) == wanted
            else:
                assert value[name] == wanted
