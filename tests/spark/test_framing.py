"""Several JSON objects in a message: each is a row with its place in the message, and a bad one is quarantined by itself."""

import json
import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType

import numpy as np
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    around,
    duplicates,
    expect,
    folder,
    ingest_table,
    kafka,
    row_table,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.declare.columns import RECORD
from lakehouse.errors import DeclarationError
from lakehouse.maintenance import erasure, replay_quarantine
from lakehouse.storage.position import declared_state
from lakehouse.stream.reading import checked, registry
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from lakehouse.transform.decoding import decode
from lakehouse.transform.functions.process import process
from support.calls import Before

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "id STRING NOT NULL, n BIGINT, at TIMESTAMP NOT NULL"

log_topic = kafka("logs", schema=SCHEMA, framing="concatenated")
plain_topic = kafka("plain", schema=SCHEMA)
mended = expect.column_values_to_be_between("n", max_value=99)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def log_lines(log_topic: DataFrame, plain_topic: DataFrame) -> DataFrame:
    return log_topic.unionByName(plain_topic)


@row_table(layer="silver", deduplicate=duplicates("id", within="1 minute"))
def first_lines(log_lines: DataFrame) -> DataFrame:
    return log_lines


@window_table(layer="gold", window=tumbling("1 minute"), keys=["id"])
def sums(first_lines: DataFrame) -> DataFrame:
    return first_lines.groupBy("window", "id").agg(
        F.sum("n").alias("n"), F.count("*").alias("rows")
    )


@versioned_table(layer="gold", keys=["id"])
def versions(log_lines: DataFrame) -> DataFrame:
    return log_lines


@row_table(layer="silver", context=around(before="1 minute"))
def pairs(log_lines: DataFrame) -> DataFrame:
    return process(log_lines, by=["id"], function=Before(), at="at", within=timedelta(minutes=1))


def line(id: str, n: object, second: float) -> str:
    return json.dumps({"id": id, "n": n, "at": (START + timedelta(seconds=second)).isoformat()})


def parted(spark, *values: bytes | None, **options: object) -> list[tuple]:
    """Of each row its message, its place there, its id, its own bytes and why it is quarantined."""
    rows = [(b"k", value, 0, n, START) for n, value in enumerate(values)]
    source = kafka("t", schema="id STRING NOT NULL, n INT", framing="concatenated", **options)
    raw = spark.createDataFrame(rows, decode.KAFKA_SCHEMA)
    read = decode.decoded(raw, source).collect()
    return [
        ((r := row[RECORD]).offset, r.place, row.id, r.value and bytes(r.value), r.problem)
        for row in read
    ]


def test_each_object_is_a_row_however_they_are_parted(spark):
    a, b = b'{"id":"a"}', b'{"id": "}{\\"", "n": 2}'
    pretty = b'{\n  "id": "c",\n  "n": 3\n}'
    read = parted(spark, a, a + b, a + b"\n" + b + b"\r\n" + pretty + b"\n\n", b" " + a + b" ")
    ids = [(offset, index, id) for offset, index, id, _, problem in read if problem is None]
    assert ids == [
        (0, 0, "a"), (1, 0, "a"), (1, 1, '}{"'), (2, 0, "a"), (2, 1, '}{"'), (2, 2, "c"), (3, 0, "a"),
    ]  # fmt: skip
    assert [value for *_, value, _ in read] == [a, a, b, a, b, pretty, a]


def test_a_bad_object_is_quarantined_by_itself_with_its_place(spark):
    good = b'{"id":"a"}'
    no_json = "not a JSON object of the declared types: "
    cases = {
        b'{"id":"x","n":"one"}': f'{no_json}field=n: declared INT, got "one"',
        b'{"n":1}': "missing field: id",
        b'{"id" "x"}': f"{no_json}it is not JSON, at character 7 of 10",
        b'{"id":"x"\n': f"{no_json}it is not JSON, at character 9 of 9",
        b'{"id":"x\n': f"{no_json}it is not JSON, at character 8 of 8",
        b'[{"id":"x"}]\n': f"{no_json}got a list",
        b'{"id":"\xff"}': "not UTF-8",
    }
    for bad, reason in cases.items():
        first, second, third = parted(spark, good + bad + good)
        assert first[:3] == (0, 0, "a") and first[4] is None
        assert second[1:2] + second[3:] == (1, bad.rstrip(b"\n"), reason)
        assert third[:3] == (0, 2, "a") and third[4] is None


def test_a_message_that_has_no_object_is_quarantined_whole(spark):
    long = b'{"id":"a"}' * 8
    read = parted(spark, b"", None, b" \n", long, max_bytes=40)
    assert [row[:2] + row[3:] for row in read] == [
        (0, 0, b"", "empty value (tombstone)"),
        (1, 0, None, "empty value (tombstone)"),
        (2, 0, b" \n", "not a JSON object of the declared types: there is none"),
        (3, 0, long, "larger than max_bytes=40"),
    ]


def test_fields_that_are_not_declared_are_those_of_each_object(spark):
    rows = parted(spark, b'{"id":"a"}{"id":"b","x":1}', unknown_fields="quarantine")
    assert [row[4] for row in rows] == [None, "fields not declared: x"]


def test_a_hostile_message_is_parted_in_one_pass(spark):
    raw = spark.createDataFrame([(None, b"{\n" * 300_000, 0, 0, START)], decode.KAFKA_SCHEMA)
    rows = decode.decoded(raw, log_topic)
    assert rows.where(f"{RECORD}.value = X'7B'").count() == 300_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "avro"}, "framing='concatenated', format='avro': only JSON objects"),
        ({"format": "text", "schema": "id STRING"}, "format='text': only JSON objects"),
        ({"format": "json_schema"}, "format='json_schema': only JSON objects"),
        ({"framing": "newline"}, "framing='newline': one of "),
        ({"key": "id"}, "framing='concatenated', key='id': a key is of one row"),
    ],
)
def test_where_a_message_is_one_value_framing_is_refused(options, message):
    with pytest.raises(DeclarationError, match=message):
        kafka("t", **{"schema": "id STRING, n INT", "framing": "concatenated"} | options)
    for form in ("csv", "parquet"):
        with pytest.raises(DeclarationError, match=f"format='{form}': only JSON objects"):
            folder("/in", schema=SCHEMA, format=form, framing="concatenated")


def fed(stage: Stage) -> None:
    """Messages of several rows, equal ids and instants among them, with a bad one in each lot and a crash at each point."""
    for lot, point in enumerate(COMMIT_POINTS):
        second = 20 * lot
        several = [line("a", 1 + lot, second), line("a", 2 + lot, second), line("b", 3, second)]
        values = ["\n".join(several), several[0] + '{"id": 5' + "\n" + line("c", 500, second + 1)]
        stage.feed("log_lines", values, source="log_topic", abort_at=point)
        stage.feed("log_lines", [line("d", 1, second)], source="plain_topic")
    for name in ("log_topic", "plain_topic"):
        stage.advance("log_lines", line("z", 1, 600), source=name)


@pytest.mark.slow
@pytest.mark.parallel
def test_stream_equals_batch_with_several_rows_in_a_message(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    fed(stage)
    stage.run("first_lines", "versions", "pairs")
    stage.run("sums")
    for name in ("first_lines", "sums", "pairs"):
        assert assert_stream_equals_batch(stage, name).verdict == "EQUAL"
    # the first of equal ids in a message is kept, and the last is the version that counts
    firsts = stage.rows("first_lines").where("id = 'a' AND n < 50").collect()
    assert [(row.n, row._arrival.place) for row in firsts] == [(1, 0)]
    found = stage.rows("versions").where("id = 'a' AND valid_to IS NULL").collect()
    assert [row.n for row in found] == [4]
    pairs = stage.rows("pairs").where("id = 'a' AND n = 2 AND _arrival.place = 1").collect()
    assert [row.before for row in pairs if row.at.second == 0] == [1]
    commits = [*stage.session.commit_log(stage.session.catalog.table("log_lines")).by_stream()]
    assert sum(commit.arrived for commit in commits) == 4 * 7 + 4
    bad = stage.rows("log_lines", "quarantine").select("value", "_arrival.place").collect()
    assert [(bytes(row.value), row.place) for row in bad] == [(b'{"id": 5', 1)] * 4
    others = stage.rows("log_lines").where("_arrival.topic = 'plain'")
    assert {row.place for row in others.select("_arrival.place").collect()} == {0}


@pytest.mark.slow
@pytest.mark.parallel
def test_rows_of_a_message_are_erased_and_replayed_one_by_one(spark, tmp_path):
    stage = Stage(spark, tmp_path, framed(expectations=[mended]))
    stage._now = datetime(2026, 1, 2, tzinfo=UTC)
    message = "".join(line(id, n, 0) for id, n in (("a", 1), ("b", 500), ("c", 600), ("d", "x")))
    stage.feed("lines", [message, message + line("e", "x", 0)])
    for second in (4000, 4001):
        stage.advance("lines", line("z", 1, second))
    stage.wait(timedelta(hours=2))
    stage.feed("lines", [line("y", 1, 7000)])
    assert counts(stage) == {"a": 2, "z": 4, "y": 1}
    assert counts(stage, "quarantine") == {"b": 2, "c": 2, "d": 2, "e": 1}
    declared_state.keep(stage.session, stage.session.catalog.table("lines"))
    stage = Stage(spark, tmp_path, framed())
    found = replay_quarantine.replay(stage.session, stage.session.catalog.table("lines"))
    assert found.rows == 4
    assert counts(stage) == {"a": 2, "b": 2, "c": 2, "z": 4, "y": 1}
    places = stage.rows("lines").where("id = 'c'").select("_arrival.offset", "_arrival.place")
    assert sorted(map(tuple, places.collect())) == [(0, 2), (1, 2)]
    stage._go_on_behind("lines")
    for second in (7001, 7002):
        stage.feed("lines", [line("y", 1, second)])
    erased = erasure.erase(stage.session, stage.session.catalog.table("lines"), "id IN ('b', 'd')")
    assert (erased.rows, erased.quarantined) == (2, 2)
    assert counts(stage) == {"a": 2, "c": 2, "z": 4, "y": 3}
    assert counts(stage, "quarantine") == {"e": 1}


def lines(source: DataFrame) -> DataFrame:
    return source


def framed(source=None, **declared) -> ModuleType:
    module = ModuleType(__name__)
    module.source = source or kafka("logs", schema=SCHEMA, framing="concatenated")
    module.lines = ingest_table(layer="bronze", event_time="at", delay="5 seconds", **declared)(
        lines
    )
    return module


def counts(stage: Stage, side: str = "") -> dict:
    rows = stage.rows("lines", side)
    what = F.get_json_object(F.col("value").cast("string"), "$.id") if side else "id"
    return {row[0]: row[1] for row in rows.groupBy(what).count().collect()}


@pytest.mark.slow
@pytest.mark.parallel
def test_lines_of_a_folder_may_have_several_objects(spark, tmp_path):
    there = tmp_path / "incoming"
    there.mkdir()
    two = line("a", 1, 0) + line("b", 2, 1)
    (there / "1.json").write_text(f"{two}\n{line('c', 3, 2)}\n{two}oops\n")
    source = folder(str(there), schema=SCHEMA, framing="concatenated", settle="0 seconds")
    stage = Stage(spark, tmp_path / "root", framed(source))
    stage.run("lines")
    assert counts(stage) == {"a": 2, "b": 2, "c": 1}
    (bad,) = stage.rows("lines", "quarantine").collect()
    assert (bytes(bad.key), bytes(bad.value), bad._arrival.place) == (b"1.json:3", b"oops", 2)
    (checked,) = registry.check(stage.session, stage.session.catalog.table("lines"))
    assert (checked.end, checked.missing, checked.doubled) == (3, 0, 0)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parametrize("noted", [True, False])
def test_a_table_that_has_read_cannot_change_its_framing(spark, tmp_path, noted):
    """Nor if the note of what it began with is lost: its rows stay."""
    stage = Stage(spark, tmp_path, framed(kafka("logs", schema=SCHEMA)))
    stage.feed("lines", [line("a", 1, 0)])
    if noted:  # as a start does
        declared_state.keep(stage.session, stage.session.catalog.table("lines"))
    with pytest.raises(DeclarationError, match="another name"):
        Stage(spark, tmp_path, framed())
    assert counts(stage) == {"a": 1}


@pytest.mark.parametrize(
    ("places", "offsets"),
    [
        ([(7, 0), (8, 0)], [7, 8]),
        ([(7, 0), (7, 0)], [7, 7]),
        ([(7, 1), (7, 0), (8, 0)], [7, 8]),
        ([(7, 0), (7, 1), (7, 1), (8, 0)], [7, 7, 8]),
        ([(7, 0), (7, 2), (8, 0), (8, 1)], [8]),
        ([(7, 1)], []),
    ],
)
def test_a_message_counts_once_if_all_of_its_rows_are_there(places, offsets):
    assert checked.whole(np.array(places).T).tolist() == offsets
