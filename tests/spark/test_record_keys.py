"""The key of a record names its row however it is written, or the record is quarantined."""

import json
import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from pyspark.sql import DataFrame

from lakehouse import expect, ingest_table, kafka, versioned_table
from lakehouse.declare.columns import HEADERS_TYPE, RECORD
from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.errors import DeclarationError
from lakehouse.maintenance import replay_quarantine
from lakehouse.storage.position import declared_state
from lakehouse.storage.position.schemas import Schema
from lakehouse.testing import Stage
from lakehouse.transform.decoding import decode, schemas

HERE = sys.modules[__name__]
AT = datetime(2026, 1, 1, tzinfo=UTC)
DECLARE = "; declare by key_format how keys are written"

accounts = kafka("accounts", schema="`the.id` STRING NOT NULL, owner STRING", key="the.id")


@ingest_table(layer="bronze", event_time="sent", delay="0 seconds")
def account_rows(accounts: DataFrame) -> DataFrame:
    return accounts.withColumnRenamed("the.id", "id")


@versioned_table(layer="silver", keys=["id"])
def account_owners(account_rows: DataFrame) -> DataFrame:
    return account_rows


def envelope(payload: object) -> bytes:
    """What Kafka Connect's JsonConverter writes, by its default."""
    kind = {"type": "struct", "fields": [{"field": "id"}], "optional": False}
    return json.dumps({"schema": kind, "payload": payload}).encode()


def source_of(kind: str, key_format: str) -> KafkaSource:
    return kafka("t", schema=f"id {kind}, n INT", key="id", key_format=key_format)  # type: ignore[arg-type]


READ = {  # key format -> keys, each of the row "7" or 7
    "": [b"7", b'"7"', b' "7"', b'{"id":"7"}', b'{"id": 7}', envelope("7"), envelope({"id": "7"})],
    "text": [b"7"],
    "json": [b"7", b'"7"', b'"\\u0037"', b' {"id" : "7" } ', envelope("7"), envelope({"id": 7})],
    "int": [bytes(3) + b"\7"],
    "long": [bytes(7) + b"\7"],
    "json_schema": [b'\0\0\0\0\1"7"', b'\0\0\0\0\1{"id": 7}'],
    "avro": [b"\0\0\0\0\1\x0e", b"\0\0\0\0\2\2" + b"7", b"\0\0\0\0\3\x0e"],
    # the first message, by both forms of its index, and one within the second
    "protobuf": [
        b"\0\0\0\0\6\0\x0a\x01" + b"7",
        b"\0\0\0\0\6\2\0\x0a\x01" + b"7",
        b"\0\0\0\0\6\4\2\0\x08\x07",
    ],
}
UNREAD = {  # not of the format
    "": [b"\xff", bytes(7) + b"\7"],
    "text": [b"\xff"],
    "json": [b"seven", b'"7', b'"7" 8', b'{"id":7}{"id":8}', b'{"id":7,"of":1}', b'{"id":null}', b"[7]"],
    "int": [b"7", bytes(7) + b"\7"],
    "long": [b"7", bytes(3) + b"\7"],
    "json_schema": [b'"7"', b"\0\0\0\0\1seven"],
    "avro": [b"7", b"\0\0\0\0\4\x0e", b"\0\0\0\0\5\x0e"],
    # no schema; unknown; no index; torn; two fields; a further field; another name; of another format
    "protobuf": [
        b"7",
        b"\0\0\0\0\4\0\x0a\x01" + b"7",
        b"\0\0\0\0\6",
        b"\0\0\0\0\6\0\x0a\x05" + b"7",
        b"\0\0\0\0\6\2\2\x0a\x01" + b"7",
        b"\0\0\0\0\6\0\x0a\x01" + b"7\x10\1",
        b"\0\0\0\0\7\0\x0a\x01" + b"7",
        b"\0\0\0\0\1\x0e",
    ],
}  # fmt: skip
OF_REGISTRY = {
    1: '"long"',
    2: '{"type": "string"}',
    3: '{"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}',
    5: '{"type": "record", "name": "Other", "fields": [{"name": "no", "type": "int"}]}',
}
OF_PROTOBUF = {
    6: """syntax = "proto3"; message Key { string id = 1; }
          message Both { string id = 1; int32 n = 2; message Within { int64 id = 1; } }""",
    7: 'syntax = "proto3"; message Key { string no = 1; }',
}
SCHEMAS = [Schema(n, "AVRO", text) for n, text in OF_REGISTRY.items()]
SCHEMAS += [Schema(n, "PROTOBUF", text) for n, text in OF_PROTOBUF.items()]


def read(spark, source: KafkaSource, *sent: tuple[bytes | None, bytes | None]) -> list:
    rows = [(key, value, 0, n, AT) for n, (key, value) in enumerate(sent)]
    writers = {schema.id: schemas._read(spark, schema) for schema in SCHEMAS}
    raw = spark.createDataFrame(rows, decode.KAFKA_SCHEMA)
    return decode.decoded(raw, source, schemas.Schemas(writers)).collect()


@pytest.mark.parametrize("key_format", READ)
def test_a_key_is_read_by_its_format_or_quarantined(spark, key_format):
    for kind, own in (("STRING", '"7"'), ("BIGINT", "7")):
        row = f'{{"id": {own}, "n": 1}}'.encode()
        of_row = [(key, value) for key in READ[key_format] for value in (row, None, b'{"n": 1}')]
        for found, (key, value) in zip(
            read(spark, source_of(kind, key_format), *of_row), of_row, strict=True
        ):
            assert found[RECORD].problem is None, (key, found)
            assert (str(found.id), found.deleted) == ("7", value is None), key
        unread = [(key, value) for key in UNREAD[key_format] for value in (row, None)]
        for found, (key, _) in zip(
            read(spark, source_of(kind, key_format), *unread), unread, strict=True
        ):
            how = key_format or "text or JSON"
            shown = key.hex().upper()[:40]
            assert found[RECORD].problem == f"key=X'{shown}': it is not {how}{DECLARE}"


def test_a_key_of_another_row_or_type_has_its_reason(spark):
    row, none = b'{"id": "7"}', (None, b'{"id": "7"}')
    cases = [
        ("STRING", "", b"8", row, "key=8: the row has id=7"),
        ("STRING", "", b'"8"', row, "key=8: the row has id=7"),
        ("STRING", "text", b'"7"', row, 'key="7": the row has id=7'),
        ("STRING", "", b'{"id":7,"of":1}', row, 'key={"id":7,"of":1}: the row has id=7'),
        ("STRING", "", b"7.0", row, "key=7.0: the row has id=7"),
        ("BIGINT", "", b"007", None, "key=007: id is declared as bigint"),
        ("BIGINT", "", b"seven", None, "key=seven: id is declared as bigint"),
        ("INT", "long", b"\0\0\0\1" + bytes(4), None, "key=4294967296: id is declared as int"),
    ]
    for kind, key_format, key, value, reason in cases:
        (found,) = read(spark, source_of(kind, key_format), (key, value))
        assert found[RECORD].problem == reason + DECLARE
    assert read(spark, source_of("STRING", ""), none)[0][RECORD].problem == "no key"


def test_numbers_of_java_keep_their_sign(spark):
    for key_format, length, kind in (("int", 4, "INT"), ("long", 8, "BIGINT")):
        ends = [-(1 << (8 * length - 1)), -1, 0, (1 << (8 * length - 1)) - 1]
        keys = [(n.to_bytes(length, signed=True), None) for n in ends]
        assert [row.id for row in read(spark, source_of(kind, key_format), *keys)] == ends


def test_a_long_key_is_text_or_quarantined_and_ends_no_job(spark):
    long = b'"' + b"a\\n" * 200_000 + b'"'
    found, other = read(spark, source_of("STRING", ""), (long, None), (b"{" + long, None))
    assert found.id == long.decode() and other.id == "{" + long.decode()
    (found,) = read(spark, source_of("STRING", "json"), (long, None))
    assert "it is not json" in found[RECORD].problem


def test_key_and_time_of_a_record_are_columns(spark):
    source = kafka("t", schema="n INT", metadata={"device": "key", "at": "timestamp"})
    rows = read(spark, source, (b"d1", b'{"n": 1}'), (None, b'{"n": 2}'), (b"\xff", b'{"n": 3}'))
    assert [row.asDict() | {RECORD: row[RECORD].problem} for row in rows] == [
        {"n": 1, "device": "d1", "at": AT.replace(tzinfo=None), RECORD: None},
        {"n": 2, "device": None, "at": AT.replace(tzinfo=None), RECORD: None},
        {"n": 3, "device": None, "at": AT.replace(tzinfo=None), RECORD: f"key=X'FF': it is not text or JSON{DECLARE}"},
    ]  # fmt: skip


def test_a_key_in_protobuf_is_a_column_whatever_its_field_is_called(spark):
    source = kafka("t", schema="n INT", metadata={"k": "key"}, key_format="protobuf")
    keys = [key for n in (6, 7) for key in (b"\0\0\0\0" + bytes([n]) + b"\0\x0a\x01" + b"7",)]
    assert [row.k for row in read(spark, source, *((key, b'{"n": 1}') for key in keys))] == [
        "7"
    ] * 2


traced = kafka(
    "traced", schema="n INT NOT NULL, at TIMESTAMP", metadata={"trace": "header:trace-id"}
)


def with_headers(spark, *headers: list[tuple[str, bytes | None]] | None) -> list:
    rows = [(None, b'{"n": 1}', 0, n, AT, each) for n, each in enumerate(headers)]
    raw = spark.createDataFrame(rows, f"{decode.KAFKA_SCHEMA}, headers {HEADERS_TYPE}")
    return decode.decoded(raw, traced).collect()


def test_a_header_is_a_column_of_its_last_text(spark):
    rows = with_headers(
        spark,
        [("trace-id", b"a"), ("other", b"x"), ("trace-id", "\u00fc".encode())],
        [("Trace-Id", b"a")],
        [("trace-id", b"a"), ("trace-id", None)],
        [("trace-id", b"")],
        [],
        None,
        [("trace-id", b"\xff"), ("trace-id", b"a")],
        [("trace-id", b"a"), ("trace-id", b"\xff")],
    )
    assert [row.trace for row in rows] == ["\u00fc", None, None, "", None, None, "a", None]
    problems = [row[RECORD].problem for row in rows]
    assert problems == [None] * 7 + ["header=trace-id: not UTF-8"]


def with_trace(traced: DataFrame) -> DataFrame:
    return traced


@pytest.mark.slow
@pytest.mark.parallel
def test_a_row_that_is_replayed_has_its_headers(spark, tmp_path):
    def stage(**declared) -> Stage:
        module = ModuleType(__name__)
        module.traced = traced
        module.with_trace = ingest_table(layer="bronze", event_time="at", **declared)(with_trace)
        return Stage(spark, tmp_path, module)

    first = stage(expectations=[expect.column_values_to_be_between("n", max_value=9)])
    first._now = AT + timedelta(days=1)  # what is to be replayed arrived in an hour that is over
    for n in (1, 50):  # written without Spark, and by it
        row = {"n": n, "at": "2026-01-01T00:00:00Z"}
        first.feed("with_trace", [row], headers=[("trace-id", f"t{n}".encode())])
        first.feed("with_trace", [row], headers=[("trace-id", f"t{n}".encode())])
    first.feed(
        "with_trace", [{"n": 2, "at": "2026-01-01T00:00:00Z"}], headers=[("trace-id", b"\xff")]
    )
    first.wait(timedelta(hours=2))
    first.feed("with_trace", [{"n": 3, "at": "2026-01-01T00:00:00Z"}])
    declared_state.keep(first.session, first.session.catalog.table("with_trace"))
    second = stage()
    replayed = replay_quarantine.replay(second.session, second.session.catalog.table("with_trace"))
    assert (replayed.rows, dict(replayed.bad)) == (2, {"header=trace-id: not UTF-8": 1})
    rows = second.rows("with_trace").select("n", "trace").collect()
    assert sorted(map(tuple, rows)) == [(1, "t1"), (1, "t1"), (3, None), (50, "t50"), (50, "t50")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metadata": {"n": "key"}}, "the source has a column of that name"),
        ({"metadata": {"N": "timestamp"}}, "the source has a column of that name"),
        ({"metadata": {"sent": "timestamp"}, "key": "id"}, "column=sent: the source has a column"),
        ({"metadata": {"x": "offset"}}, "x='offset': one of key, timestamp, header:NAME"),
        ({"metadata": {"x": "header:"}}, "x='header:': one of key, timestamp, header:NAME"),
        ({"metadata": {"N": "header:n"}}, "the source has a column of that name"),
        ({"key_format": "json"}, "nothing reads the keys"),
        ({"key_format": "uuid", "key": "id"}, "key_format='uuid': one of "),
        ({"key": "ID"}, "name a STRING, INT or BIGINT column"),
    ],
)
def test_keys_and_metadata_that_cannot_be_are_refused(options, message):
    with pytest.raises(DeclarationError, match=message):
        kafka("t", schema="id STRING, n INT", **options)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_tombstone_with_a_key_in_json_deletes_the_row(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    for key in (b'"7"', b"8", b'{"the.id": "9"}'):
        number = key.decode().strip('"}')[-1]
        stage.feed("account_rows", [{"the.id": number, "owner": f"o{number}"}], key=key)
    stage.feed("account_rows", [{"the.id": "10", "owner": "o10"}])
    for key in (b'"7"', b'{"the.id":"9"}', b"10"):
        stage.feed("account_rows", [None], key=key)
    stage.feed("account_rows", [{"the.id": "7", "owner": "other"}], key=b"70")
    stage.run("account_owners")
    owners = stage.session.read(stage.session.catalog.table("account_owners"))
    valid = owners.where("valid_to IS NULL").collect()
    assert {row.id: row.owner for row in valid} == {"7": None, "8": "o8", "9": None, "10": None}
    quarantined = stage.session.read(stage.session.catalog.table("account_rows"), side="quarantine")
    assert [row.reason for row in quarantined.collect()] == [
        f"key=70: the row has the.id=7{DECLARE}"
    ]
