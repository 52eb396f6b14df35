"""Of messages of which half are hostile each is in exactly one place: a row with the values that were sent, or quarantined."""

import math
import sys
from collections import Counter

import pytest

from lakehouse.declare.table import folder, kafka, table
from lakehouse.testing import Stage
from stories import hostile
from support.schema_registry import served

HERE = sys.modules[__name__]

json_topic = kafka("hostile-json", schema=hostile.SCHEMA)
json_schema_topic = kafka("hostile-json-schema", format="json_schema", schema=hostile.SCHEMA)
csv_lines = folder(
    "/data/hostile", format="csv", schema=hostile.SCHEMA, max_future_skew="5 minutes"
)
text_topic = kafka("hostile-text", format="text", schema="line STRING NOT NULL")
avro_topic = kafka(
    "hostile-avro", format="avro", schema="id STRING NOT NULL, at TIMESTAMP NOT NULL, n BIGINT"
)


@table(layer="bronze", event_time="at", delay="0 seconds")
def json_rows(json_topic):
    return json_topic


@table(layer="bronze", event_time="at", delay="0 seconds")
def json_schema_rows(json_schema_topic):
    return json_schema_topic


@table(layer="bronze", event_time="at", delay="0 seconds")
def csv_rows(csv_lines):
    return csv_lines


@table(layer="bronze", event_time="ingestion_time", delay="0 seconds")
def text_rows(text_topic):
    return text_topic


@table(layer="bronze", event_time="at", delay="0 seconds")
def avro_rows(avro_topic):
    return avro_topic


@pytest.fixture
def stage(spark, tmp_path):
    with served() as known:
        known.register(hostile.AVRO_ID, hostile.AVRO, "hostile-avro-value")
        schema = {"type": "object", "properties": {}}
        known.register(hostile.JSON_ID, schema, "hostile-json-schema-value", schemaType="JSON")
        yield Stage(spark, tmp_path, HERE, registry={"url": known.url})


def compare(stage: Stage, format: str, seed: int, many: int) -> Counter[str]:
    """How many messages of each kind were sent; each is found in one place, as it must be."""
    sent = list(hostile.messages(format, seed, many))
    name = f"{format}_rows"
    stage.feed(name, [message.value for message in sent], sent=hostile.SENT)
    columns = list(hostile.TYPES) if "json" in format or format == "csv" else None
    rows = by_offset(stage.rows(name).toArrow().to_pylist())
    aside = by_offset(stage.rows(name, "quarantine").toArrow().to_pylist())
    wrong: dict[str, tuple] = {}
    for offset, message in enumerate(sent):
        row, bad = rows.pop(offset, None), aside.pop(offset, None)
        if message.row is None:
            fine = bad and not row and bad["reason"] and bad["value"] == message.value
        else:
            got = row and {key: row[key] for key in columns or message.row}
            fine = got and not bad and same(got, message.row)
        if not fine:
            wrong[message.kind] = (message.value, message.row, row, bad and bad["reason"])
    assert not wrong, f"seed {seed}, {format}, {len(wrong)} kinds: {wrong}"
    assert not rows and not aside, "nothing else is there"
    return Counter(message.kind for message in sent)


def by_offset(rows: list[dict]) -> dict[int, dict]:
    found = {row["_arrival"]["offset"]: row for row in rows}
    assert len(found) == len(rows), "no offset is there twice"
    return found


def same(got: dict, wanted: dict) -> bool:
    return all(alike(got[name], value) for name, value in wanted.items())


def alike(got, wanted) -> bool:
    if isinstance(wanted, float) and isinstance(got, float):
        if math.isnan(wanted):
            return math.isnan(got)
        return got == wanted and math.copysign(1, got) == math.copysign(1, wanted)
    return type(got) is type(wanted) and got == wanted


def test_hostile_messages_are_in_one_place_as_sent_or_quarantined(stage, fresh_seed):
    kinds = {format: compare(stage, format, fresh_seed, 400) for format in hostile.FORMATS}
    assert all(len(of_format) > 10 for of_format in kinds.values())


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(1)
def test_100_000_hostile_messages_are_in_one_place(stage, fresh_seed, say):
    shares = {"json": 30_000, "json_schema": 20_000, "csv": 30_000, "text": 10_000, "avro": 10_000}
    kinds = {format: compare(stage, format, fresh_seed, many) for format, many in shares.items()}
    assert sum(map(Counter.total, kinds.values())) == 100_000
    assert sum(map(len, kinds.values())) > 72
    good = sum(of_format["good"] for of_format in kinds.values())
    assert 40_000 < good < 62_000, "half of them are hostile"
    counts = Counter({format: len(of_format) for format, of_format in kinds.items()})
    say("hostile messages, kinds of each format", fresh_seed, counts)
