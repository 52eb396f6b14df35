"""No table holds instants or dates outside the years 1 to 9999; where one written before does, its readers name the row."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from pyspark.sql import functions as F

from lakehouse import (
    files,
    ingest_table,
    kafka,
    keyed_table,
    reference_table,
    row_table,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.cli import query
from lakehouse.errors import DeclarationError, QueryError, SinkError
from lakehouse.reconcile import reconciliation
from lakehouse.sinks.follower import Follower
from lakehouse.sinks.targets.files import file_folder
from lakehouse.storage.keyed import point_reads
from lakehouse.testing import Stage
from lakehouse.transform.checks import years

HERE = sys.modules[__name__]
MILLIS = 1_767_225_600_000  # of 2026; as seconds the year 57971
NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULE = "an instant or a date must be in the years 1 to 9999"

_SCHEMA = "id STRING NOT NULL, at TIMESTAMP NOT NULL, number BIGINT"
reading_topic = kafka("readings", schema=_SCHEMA)
stamped_topic = kafka("stamped", schema=_SCHEMA)


@ingest_table(layer="bronze", event_time="at", delay="0 seconds")
def readings(reading_topic):
    return reading_topic


@ingest_table(layer="bronze", event_time="at", delay="0 seconds")
def stamped(stamped_topic):
    return stamped_topic.withColumn("seen", F.timestamp_seconds("number"))


@row_table(layer="silver")
def shifted(readings):
    """Each kind of column that can hold such a value, one for each id."""
    seen = F.timestamp_seconds("number")
    columns = {
        "later": F.expr("at + make_ym_interval(int(number))"),
        "day": F.expr("date_add(DATE'2026-01-01', int(number))"),
        "local": F.expr("TIMESTAMP_NTZ'2026-01-01' + make_ym_interval(int(number))"),
        "nested": F.struct(seen.alias("seen")),
        "several": F.array(F.lit(NOW), seen),
        "named": F.create_map(F.lit("a"), F.array(F.struct(seen.alias("seen")))),
    }
    own = (F.when(F.col("id") == name, each).alias(name) for name, each in columns.items())
    return readings.select("id", "at", "number", "_arrival", *own)


@window_table(layer="gold", window=tumbling("1 hour"), keys=["id"])
def seen_by_hour(readings):
    return readings.groupBy("window", "id").agg(F.max(F.timestamp_seconds("number")).alias("last"))


@keyed_table(layer="gold", keys=["id"])
def last_seen(readings):
    return readings.groupBy("id").agg(F.max(F.timestamp_seconds("number")).alias("last"))


@keyed_table(layer="gold", keys=["id"])
def places(readings):
    """Computed by groups."""
    last = readings.groupBy("id").agg(F.max(F.timestamp_seconds("number")).alias("last"))
    return last.where("id <> 'none'")


@versioned_table(layer="gold", keys=["id"])
def versions_seen(readings):
    return readings.withColumn("last", F.timestamp_seconds("number"))


BAD = {
    "later": 99_999,
    "day": 9_999_999,
    "local": -99_999,
    "nested": MILLIS,
    "several": -MILLIS,
    "named": MILLIS,
}
GOOD = dict.fromkeys(BAD, 1) | {"none": None}


def row(id: str, number: int | None, minute: int = 0) -> dict:
    return {"id": id, "at": (NOW + timedelta(minutes=minute)).isoformat(), "number": number}


def reasons(stage: Stage, name: str) -> dict[str, str]:
    rows = stage.rows(name, "quarantine").collect()
    return {json.loads(each.value)["id"]: each.reason for each in rows}


@pytest.mark.slow
@pytest.mark.parallel
def test_rows_beyond_the_years_of_python_are_quarantined(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("readings", [row(id, number) for id, number in GOOD.items()])
    stage.feed("readings", [row(id, number) for id, number in BAD.items()])
    stage.feed("stamped", [row("a", 1), row("b", MILLIS), row("c", -MILLIS)])
    stage.advance("readings", row("none", None, 120))
    stage.run("shifted", "seen_by_hour")
    assert reasons(stage, "shifted") == {id: f"outside the years 1 to 9999: {id}" for id in BAD}
    assert len(stage.rows("shifted").collect()) == len(GOOD) + 2, (
        "and those that move the watermark"
    )
    beyond = "outside the years 1 to 9999: last"
    assert reasons(stage, "seen_by_hour") == dict.fromkeys(("nested", "named"), beyond)
    assert {each.id for each in stage.rows("seen_by_hour").collect()} == {
        "later", "day", "local", "several", "none"
    }  # fmt: skip
    beyond = "outside the years 1 to 9999: seen"
    assert reasons(stage, "stamped") == {"b": beyond, "c": beyond}
    [known] = reconciliation.reconcile_parts(
        stage.session, stage.session.catalog.table("seen_by_hour")
    )[:1]
    assert known.verdict == "EQUAL"


@pytest.mark.parametrize("name", ["last_seen", "places", "versions_seen"])
def test_a_table_without_a_quarantine_refuses_such_a_row_by_name(spark, tmp_path, name):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("readings", [row("a", 1)])
    stage.run(name)
    before = [each.id for each in stage.rows(name).collect()]
    stage.feed("readings", [row("b", MILLIS)])
    named = rf"table={name}, id=b, last=57971.*{RULE}, .*; correct it in the table's function"
    with pytest.raises(Exception, match=named):
        stage.run(name)
    assert [each.id for each in stage.rows(name).collect()] == before == ["a"]


def test_a_first_step_of_a_keyed_table_refuses_such_a_row_by_name(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("readings", [row("b", MILLIS)])
    named = rf'table=last_seen, row=\{{"id":"b"\}}, column=last: {RULE}'
    with pytest.raises(Exception, match=named):
        stage.run("last_seen")


def test_a_reference_table_refuses_such_a_row(spark, tmp_path):
    def known_days(days):
        return days.select("id", F.expr("date_add(DATE'2026-01-01', number)").alias("day"))

    known_days.__module__ = "days"
    file = tmp_path / "days.json"
    file.write_text('{"id": "a", "number": 9999999}\n')
    module = ModuleType("days")
    vars(module).update(
        days=files(str(file), schema="id STRING, number INT", format="json"),
        known_days=reference_table(layer="bronze", keys=["id"])(known_days),
    )
    with pytest.raises(DeclarationError, match=r'outside the years 1 to 9999: day .*"id":"a"'):
        Stage(spark, tmp_path / "root", module)


@pytest.fixture(scope="module")
def older(spark, tmp_path_factory) -> Stage:
    """Tables with such rows, as versions of this library wrote them that did not look."""
    stage = Stage(spark, tmp_path_factory.mktemp("older"), HERE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(years, "is_beyond", lambda column, kind: None)
        stage.feed("readings", [row("a", 1), row("nested", MILLIS)])
        stage.advance("readings", row("none", None, 120))
        stage.run("shifted", "seen_by_hour", "last_seen")
    return stage


def test_a_query_names_the_row_that_python_cannot_read(older):
    for select in (query.select, query.select_in_spark):

        def run(sql: str, select: Callable = select) -> query.Answer:
            return select(older.session, sql, None, "", query.as_answer)

        with pytest.raises(QueryError, match=rf"table=last_seen, row=\d, last=57971-.*{RULE}"):
            run("SELECT id, last FROM last_seen ORDER BY id = 'nested'")
        with pytest.raises(QueryError, match=r"table=shifted, row=1, nested=a value in it"):
            run("SELECT nested FROM shifted WHERE id = 'nested'")
        answer = run("SELECT id FROM last_seen WHERE id = 'a'")
        assert answer.rows == [("a",)]


def test_the_row_of_a_key_that_python_cannot_read_is_named(older):
    path = older.session.path(older.session.catalog.table("last_seen"))
    assert point_reads.get(path, ["id"], "a")[0]["id"] == "a"
    with pytest.raises(QueryError, match=rf"table=last_seen, .*last=57971-.*{RULE}"):
        point_reads.get(path, ["id"], "nested")


def test_a_follower_names_the_row_that_python_cannot_read(older, tmp_path):
    target = file_folder(str(tmp_path / "out"), key=["id"])
    follower = Follower(older.session, older.session.catalog.table("last_seen"), target)
    follower.begin()
    named = rf"target=out, table=last_seen, version=\d+, id=nested, last=57971-.*{RULE}"
    with pytest.raises(SinkError, match=named):
        follower.step()


@pytest.mark.parametrize("name", ["shifted", "seen_by_hour", "last_seen"])
def test_differences_with_instants_that_python_has_not_are_explained(older, tmp_path, name):
    stage = older.copied(tmp_path / "root")
    table = stage.session.catalog.table(name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(years, "is_beyond", lambda column, kind: None)
        patched.setattr(F, "timestamp_seconds", lambda name: F.timestamp_millis(F.col(name) * 999))
        certificates = reconciliation.reconcile_parts(stage.session, table)
    [different] = [each for each in certificates if each.verdict == "DIFFERENT"]
    assert "+57971-" in str(different) and "+57915-" in str(different), different
