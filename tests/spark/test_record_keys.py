"""The key of a record names its row however it is written, or the record is quarantined."""

import json
import sys
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame

from lakehouse.declare.columns import RECORD
from lakehouse.declare.sources import KafkaSource
from lakehouse.declare.table import kafka, table
from lakehouse.errors import DeclarationError
from lakehouse.storage.schemas import Schema
from lakehouse.testing import Stage
from lakehouse.transform import decode, schemas

HERE = sys.modules[__name__]
AT = datetime(2026, 1, 1, tzinfo=UTC)
DECLARE = "; declare by key_format how keys are written"

accounts = kafka("accounts", schema="`the.id` STRING NOT NULL, owner STRING", key="the.id")


@table(layer="bronze", event_time="sent", delay="0 seconds")
def account_rows(accounts: DataFrame) -> DataFrame:
    return accounts.withColumnRenamed("the.id", "id")


@table(layer="silver", keeps="versions", keys=["id"])
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
}
UNREAD = {  # not of the format
    "": [b"\xff", bytes(7) + b"\7"],
    "text": [b"\xff"],
    "json": [b"seven", b'"7', b'"7" 8', b'{"id":7}{"id":8}', b'{"id":7,"of":1}', b'{"id":null}', b"[7]"],
    "int": [b"7", bytes(7) + b"\7"],
    "long": [b"7", bytes(3) + b"\7"],
    "json_schema": [b'"7"', b"\0\0\0\0\1seven"],
    "avro": [b"7", b"\0\0\0\0\4\x0e", b"\0\0\0\0\5\x0e"],
}  # fmt: skip
OF_REGISTRY = {
    1: '"long"',
    2: '{"type": "string"}',
    3: '{"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}',
    5: '{"type": "record", "name": "Other", "fields": [{"name": "no", "type": "int"}]}',
}


def read(spark, source: KafkaSource, *sent: tuple[bytes | None, bytes | None]) -> list:
    rows = [(key, value, 0, n, AT) for n, (key, value) in enumerate(sent)]
    writers = {n: schemas._read(spark, Schema(n, "AVRO", text)) for n, text in OF_REGISTRY.items()}
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metadata": {"n": "key"}}, "the source has a column of that name"),
        ({"metadata": {"N": "timestamp"}}, "the source has a column of that name"),
        ({"metadata": {"sent": "timestamp"}, "key": "id"}, "column=sent: the source has a column"),
        ({"metadata": {"x": "offset"}}, "x='offset': one of key, timestamp"),
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
