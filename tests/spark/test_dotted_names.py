"""Fields whose names hold dots and other letters, as of the Elastic Common Schema: read, kept and compared."""

import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    expect,
    files,
    ingest_table,
    kafka,
    keyed_table,
    row_table,
    sql,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError
from lakehouse.storage.delta.digest import differences
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform.checks.quality import validate
from lakehouse.transform.decoding.reference_files import file_rows
from lakehouse.transform.versions import as_of_join

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
KEPT = ("log.level", "host.name", "ünï.çode")
READ = ("a b", "it's", "quo`te", "x`.`y", "semi;colon")
NAMES = (*KEPT, *READ)


def ddl(*names: str) -> str:
    return ", ".join("`{}` STRING".format(name.replace("`", "``")) for name in names)


log_topic = kafka("logs", schema=f"{ddl(*NAMES)}, `n.of` INT, at TIMESTAMP NOT NULL")
plain_topic = kafka("plain", schema="`log.level` STRING NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(
    layer="bronze",
    event_time="at",
    delay="5 seconds",
    expectations=[
        expect.column_values_to_not_be_null("host.name"),
        expect.column_values_to_match_regex("log.level", regex="^log"),
        expect.column_pair_values_to_be_equal("host.name", "host_name"),
        expect.column_values_to_be_in_set("n.of", value_set=[1, 2]),
    ],
)
def log_lines(log_topic: DataFrame) -> DataFrame:
    return log_topic.withColumnsRenamed(
        {name: f"read_{number}" for number, name in enumerate(READ)}
    ).withColumn("host_name", F.col("`host.name`"))


@row_table(layer="silver", keys=["log.level", "host_name"])
def log_rows(log_lines: DataFrame) -> DataFrame:
    return log_lines


@window_table(layer="gold", window=tumbling("1 minute"), keys=["log.level"], late="update")
def log_counts(log_lines: DataFrame) -> DataFrame:
    return log_lines.groupBy("window", "`log.level`").agg(F.count("*").alias("n"))


@keyed_table(layer="gold", keys=["log.level"])
def log_states(log_lines: DataFrame) -> DataFrame:
    return log_lines.groupBy("`log.level`").agg(F.count("*").alias("n"))


@versioned_table(layer="gold", keys=["log.level"])
def log_versions(log_lines: DataFrame) -> DataFrame:
    return log_lines


sql_lines = ingest_table(layer="bronze", event_time="at", delay="5 seconds")(
    sql("sql_lines", "SELECT * FROM {plain_topic}")
)


def row(number: int) -> dict[str, object]:
    at = (START + timedelta(seconds=20 * number)).isoformat()
    return {name: f"{name} {number % 2}" for name in NAMES} | {"at": at, "n.of": 1}


@pytest.mark.slow
@pytest.mark.parallel
def test_a_sql_table_may_take_all_columns_of_a_topic(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("sql_lines", [row(1)])
    assert stage.rows("sql_lines").select("`log.level`").head()[0] == "log.level 1"


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parametrize("name", ["log_rows", "log_counts", "log_states", "log_versions"])
def test_a_table_has_fields_with_dots(spark, tmp_path, name):
    stage = Stage(spark, tmp_path, HERE)
    for lot in range(0, 12, 4):
        stage.feed("log_lines", [row(number) for number in range(lot, lot + 4)])
        stage.run(name)
    stage.feed("log_lines", [row(40)])
    stage.run(name)
    read = stage.rows("log_lines").where("at < '2026-01-01 00:00:30'").orderBy("at").first()
    assert [read[name] for name in KEPT] == [f"{name} 0" for name in KEPT]
    assert [read[f"read_{n}"] for n in range(len(READ))] == [f"{name} 0" for name in READ]
    levels = {result["log.level"] for result in stage.rows(name).collect()}
    assert levels == {"log.level 0", "log.level 1"}
    if name in ("log_rows", "log_counts"):
        assert assert_stream_equals_batch(stage, name).verdict == "EQUAL"


@pytest.mark.slow
@pytest.mark.parallel
def test_expectations_hold_of_fields_with_dots(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    bad = {"host.name": None}, {"log.level": "x"}, {"n.of": 3}
    for _ in range(2):  # by Spark, and without
        stage.feed("log_lines", [row(1), *(row(2) | each for each in bad)])
    reasons = [each.reason for each in stage.rows("log_lines", "quarantine").collect()]
    assert sorted(reason.split("(")[0] for reason in reasons) == [
        f"expectation: expect_column_values_to_{name}"
        for name in ("be_in_set", "match_regex", "not_be_null")
        for _ in range(2)
    ]
    table = stage.session.catalog.table("log_lines")
    results = validate(stage.rows("log_lines"), table.expectations)
    assert [each.passed for each in results] == [True] * 4
    assert "n.of" in results[3].expectation
    results = validate(stage.rows("log_lines").withColumn("n.of", F.lit(9)), table.expectations)
    assert [(each.passed, each.unexpected) for each in results] == [(True, 0)] * 3 + [(False, 2)]


@pytest.mark.parametrize("option", ["event_time", "marker", "watermark_by"])
def test_a_column_that_places_rows_in_time_has_no_dot(option):
    module = ModuleType(__name__)
    module.source = kafka("t", schema="`event.created` TIMESTAMP NOT NULL")
    module.rows = ingest_table(layer="bronze", **{"event_time": "at", option: "event.created"})(
        rows
    )
    with pytest.raises(DeclarationError, match=rf"{option}='event.created': a name with a dot"):
        catalog_of([module])


def rows(source: DataFrame) -> DataFrame:
    return source


def test_differences_are_found_by_columns_with_dots(spark):
    rows = spark.createDataFrame([("a", 1), ("b", 2)], "`log.level` STRING, `n.of` INT")
    rows = rows.withColumn("_all", F.lit(1))
    other = rows.withColumn("n.of", F.abs(F.col("`n.of`") - 3) * F.lit(2) - F.col("`n.of`") + 1)
    difference = differences(rows, other, ["log.level"], "_all")[1]
    assert (difference.missing, difference.extra, difference.changed) == (0, 0, 2)
    assert any("log.level=b: batch n.of=2, table n.of=1" in text for text in difference.examples)


def test_versions_are_joined_by_columns_with_dots_and_fields_of_structs(spark):
    sent = spark.sql("SELECT 'a' AS `log.level`, TIMESTAMP'2026-01-02' AS `sent.at`")
    known = spark.sql(
        "SELECT 'a' AS `log.level`, 1 AS `n.of`, struct(2 AS cents) AS price, "
        "TIMESTAMP'2026-01-01' AS valid_from, CAST(NULL AS TIMESTAMP) AS valid_to"
    )
    take = {"n.of": "n.of", "cents": "price.cents"}
    rows = as_of_join(sent, known, on="log.level", at="sent.at", take=take)
    assert rows.columns == ["log.level", "sent.at", "n.of", "cents"]
    assert [tuple(row)[2:] for row in rows.collect()] == [(1, 2)]


@pytest.mark.parametrize(
    ("form", "lines"),
    [("csv", "log.level,n.of\nwarn,1\n"), ("json", '{"log.level": "warn", "n.of": 1}\n')],
)
def test_files_of_a_reference_have_columns_with_dots(spark, tmp_path, form, lines):
    path = tmp_path / f"levels.{form}"
    path.write_text(lines)
    source = files(str(path), schema="`log.level` STRING, `n.of` INT", format=form)
    assert [tuple(line) for line in file_rows(spark, source).collect()] == [("warn", 1)]
