"""Texts that Spark reads as instants of today are refused in all that is declared, with the remedy; those with a date are not."""

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
    sql,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.declare.catalog import catalog_of
from lakehouse.declare.expectations import expect
from lakehouse.errors import DeclarationError
from lakehouse.settings import Settings
from lakehouse.storage.session import Session
from lakehouse.transform.analysis import validation

entry_topic = kafka(
    "entries",
    schema="id STRING NOT NULL, at TIMESTAMP NOT NULL, day DATE, time STRING, times ARRAY<STRING>, entry STRUCT<time: STRING>, "
    "json STRING, local TIMESTAMP_NTZ",
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def entries(entry_topic):
    return entry_topic


def check(spark, root, function, declare=None, *, source=None, **options) -> None:
    """Checks a table that is made by the function of `entries`, or of a `source` of its own."""

    def of_entries(entries):
        return function(entries)

    def of_source(source):
        return function(source)

    made = of_source if source else of_entries
    made.__module__, made.__name__ = "my_tables", "made"
    module = ModuleType("my_tables")
    vars(module).update(entry_topic=entry_topic, entries=entries, source=source)
    vars(module).update(made=(declare or row_table(layer="silver", **options))(made))
    catalog = catalog_of([module])
    validation.check(Session(Settings(root=root), catalog, spark), catalog.table("made"))


def column(expression):
    return lambda rows: rows.withColumn("x", F.expr(expression))


TODAY = [
    "CAST(time AS TIMESTAMP)",
    "TRY_CAST(time AS TIMESTAMP)",
    "to_timestamp(time)",
    "try_to_timestamp(time)",
    "to_timestamp_ltz(time)",
    "CAST(lower(time) AS TIMESTAMP)",
    "CAST(time || ' 2026-01-01' AS TIMESTAMP)",
    "CAST('12:30' AS TIMESTAMP)",
    "CAST('T12:30:00' AS TIMESTAMP)",
    "CAST(times AS ARRAY<TIMESTAMP>)",
    "CAST(entry AS STRUCT<time: TIMESTAMP>)",
    "CAST(map(time, time) AS MAP<TIMESTAMP, STRING>)",
    "transform(times, t -> CAST(t AS TIMESTAMP))",
    "at < time",
    "at IN (time)",
    "at BETWEEN time AND time",
    "coalesce(at, time)",
    "CASE WHEN id = 'a' THEN at ELSE time END",
    "hour(time)",
    "extract(MINUTE FROM time)",
    "date_trunc('hour', time)",
    "date_format(time, 'HH')",
    "months_between(at, time)",
    "at - time",
    "from_utc_timestamp(time, 'CET')",
    "timestampadd(HOUR, 1, time)",
    "(SELECT max(CAST(time AS TIMESTAMP)) FROM VALUES ('12:30') AS v(time))",
    "variant_get(parse_json(json), '$.time', 'timestamp')",
    "try_variant_get(parse_json(json), '$.time', 'timestamp')",
    "CAST(parse_json(json) AS TIMESTAMP)",
    "CAST(parse_json(json) AS ARRAY<TIMESTAMP>)",
    "from_json(json, 'time TIMESTAMP')",
    "from_json(json, 'entries ARRAY<STRUCT<time: TIMESTAMP>>')",
    "from_csv(json, 'time TIMESTAMP')",
    "from_xml(json, 'time TIMESTAMP')",
    "from_json(json, 'time TIMESTAMP', map('timestampFormat', 'HH:mm', 'enableDateTimeParsingFallback', 'true'))",
]
NOT_TODAY = [
    "try_to_timestamp(time, 'yyyy-MM-dd HH:mm:ss')",
    "to_timestamp(time, 'HH:mm:ss')",
    "unix_timestamp(time)",
    "CAST(time AS DATE)",
    "to_date(time)",
    "year(time)",
    "day < time",
    "CAST(time AS TIMESTAMP_NTZ)",
    "local < time",
    "CAST(day AS TIMESTAMP)",
    "CAST(CAST(day AS STRING) AS TIMESTAMP)",
    "CAST(concat(CAST(day AS STRING), ' ', time) AS TIMESTAMP)",
    "CAST(day || ' ' || time AS TIMESTAMP)",
    "CAST('2026-01-01 ' || time AS TIMESTAMP)",
    "CAST('2026-01-01' AS TIMESTAMP)",
    "CAST('2026' AS TIMESTAMP)",
    "CAST(NULL AS TIMESTAMP)",
    "at > '2026-01-01 12:30'",
    "CAST(1.5 AS TIMESTAMP)",
    "CAST(array(at) AS ARRAY<TIMESTAMP>)",
    "CAST(struct(time, at) AS STRUCT<a: STRING, b: TIMESTAMP>)",
    "variant_get(parse_json(json), '$.time', 'timestamp_ntz')",
    "from_json(json, 'time STRING, day DATE, at TIMESTAMP_NTZ')",
    "from_json(json, 'time TIMESTAMP', map('TimestampFormat', 'yyyy-MM-dd HH:mm:ss'))",
    "make_timestamp(2026, 1, 1, 12, 30, 0)",
]


@pytest.mark.parametrize("expression", TODAY)
def test_texts_of_a_time_alone_are_refused(spark, tmp_path, expression):
    with pytest.raises(DeclarationError, match=r"is read as an instant of today.*(try_to_|Format)"):
        check(spark, tmp_path, column(expression))


@pytest.mark.parametrize("expression", NOT_TODAY)
def test_what_no_clock_decides_is_not_refused(spark, tmp_path, expression):
    check(spark, tmp_path, column(expression))


SOURCE = kafka("others", schema="id STRING, at TIMESTAMP NOT NULL, time STRING")
WITH_TIME = column("try_cast(time AS TIMESTAMP)")
LOOKS_AT_TIME = [expect.column_values_to_match_regex("time", regex="^12:")]


@pytest.mark.parametrize(
    "function, declare, source",
    [
        (lambda rows: rows.where("CAST(time AS TIMESTAMP) < at"), row_table(layer="silver"), None),
        (
            WITH_TIME,
            ingest_table(layer="bronze", event_time="at", delay="5 seconds"),
            SOURCE,
        ),
        (
            WITH_TIME,
            reference_table(layer="silver"),
            files("f", schema="id STRING, time STRING", format="json"),
        ),
        (
            lambda rows: rows.groupBy("window").agg(F.max(F.to_timestamp("time")).alias("last")),
            window_table(layer="silver", window=tumbling("1 minute")),
            None,
        ),
        (
            lambda rows: rows.groupBy("id").agg(F.max(F.to_timestamp("time")).alias("last")),
            keyed_table(layer="silver", keys=["id"]),
            None,
        ),
        (WITH_TIME, versioned_table(layer="silver", keys=["id"]), None),
    ],
    ids=["filter", "ingest", "reference", "window", "keyed", "versioned"],
)
def test_every_kind_of_table_refuses_times_alone(spark, tmp_path, function, declare, source):
    with pytest.raises(DeclarationError, match=r"table=made.*is read as an instant of today"):
        check(spark, tmp_path, function, declare, source=source)


def test_an_expectation_refuses_times_alone(spark, tmp_path):
    limits = expect.column_pair_values_a_to_be_greater_than_b("at", "time")
    with pytest.raises(DeclarationError, match=r"table=made, expectations, .*instant of today"):
        check(spark, tmp_path, lambda rows: rows, expectations=[limits])
    check(spark, tmp_path, lambda rows: rows, expectations=LOOKS_AT_TIME)


@pytest.mark.parametrize(
    "literal", ["TIMESTAMP '12:30:00'", "timestamp_ltz 'T9:05'", "date'today'"]
)
def test_sql_with_a_literal_of_today_is_refused(spark, tmp_path, literal):
    made = row_table(layer="silver")(sql("made", f"SELECT *, {literal} AS x FROM {{entries}}"))
    made.transformation.__module__ = "my_tables"
    module = ModuleType("my_tables")
    vars(module).update(entry_topic=entry_topic, entries=entries, made=made)
    catalog = catalog_of([module])
    with pytest.raises(DeclarationError, match="two runs have two clocks"):
        validation.check(Session(Settings(root=tmp_path), catalog, spark), catalog.table("made"))


def test_a_table_declared_as_not_deterministic_may_read_times_alone(spark, tmp_path):
    check(spark, tmp_path, column("CAST(time AS TIMESTAMP)"), deterministic=False)
