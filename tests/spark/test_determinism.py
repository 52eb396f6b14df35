"""What live and batch runs may differ by is refused before it has run, with the remedy; and what they agree on is not."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from types import ModuleType

import pytest
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from lakehouse import around, ingest_table, kafka, keyed_table, row_table, tumbling, window_table
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError
from lakehouse.reconcile import reconciliation
from lakehouse.settings import Settings
from lakehouse.storage.session import Session
from lakehouse.testing import Stage
from lakehouse.transform.analysis import shapes, validation
from lakehouse.transform.functions.process import KeyedProcess, process

HERE = sys.modules[__name__]

click_topic = kafka(
    "clicks",
    schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL, share DOUBLE",
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic):
    return click_topic


tap_topic = kafka("taps", schema=click_topic.schema)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def of_two_topics(click_topic, tap_topic):
    return click_topic.unionByName(tap_topic)


@window_table(layer="gold", window=tumbling("1 minute"), keys=["user"], deterministic=False)
def unreconciled(clicks):
    return clicks.groupBy("window", "user").agg(F.sum("share").alias("share"))


def checked(spark, tmp_path, function, source=clicks, declare=row_table, **options) -> None:
    def made(clicks):
        return function(clicks)

    made.__module__ = "my_tables"
    module = ModuleType("my_tables")
    vars(module).update(
        click_topic=click_topic,
        tap_topic=tap_topic,
        clicks=source,
        made=declare(layer="gold", **options)(made),
    )
    catalog = catalog_of([module])
    validation.check(Session(Settings(root=tmp_path), catalog, spark), catalog.table("made"))


def in_sql(query):
    return lambda clicks: clicks.sparkSession.sql(query, clicks=clicks)


def per_minute(*aggregates):
    return lambda clicks: clicks.groupBy("window", "user").agg(*aggregates)


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda c: c.withColumn("now", F.current_timestamp()), "two runs have two clocks"),
        (lambda c: c.where(F.rand() < 0.1), "another value in each run"),
        (lambda c: c.withColumn("id", F.uuid()), "another value in each run"),
        (lambda c: c.dropDuplicates(["user"]), r"operators=Deduplicate: .*deduplicate=duplicates"),
        (
            lambda c: c.limit(3),
            "operators=GlobalLimit, LocalLimit: a row table is computed row by row",
        ),
        (
            lambda c: c.withColumn(
                "n", F.row_number().over(Window.partitionBy("user").orderBy("at"))
            ),
            "operators=Window",
        ),
        (
            in_sql("SELECT * FROM {clicks} WHERE value > (SELECT avg(value) FROM {clicks})"),
            "operators=Aggregate, Subquery: a row table is computed row by row",
        ),
        (
            in_sql("SELECT * FROM {clicks} WHERE value IN (SELECT value + 1 FROM {clicks})"),
            "operators=Subquery",
        ),
        (
            in_sql(
                "WITH d AS (SELECT user u FROM {clicks}) SELECT c.* FROM {clicks} c JOIN d ON u = user"
            ),
            "operators=Join",
        ),
        (in_sql("SELECT *, (SELECT now()) AS n FROM {clicks}"), "two runs have two clocks"),
        (in_sql("SELECT *, CAST(' now' AS DATE) AS n FROM {clicks}"), "two runs have two clocks"),
    ],
)
def test_rows_that_two_runs_would_compute_differently_are_refused(
    spark, tmp_path, function, message
):
    with pytest.raises(DeclarationError, match=message):
        checked(spark, tmp_path, function)


@pytest.mark.parametrize(
    "aggregate, message",
    [
        (lambda: F.first("value"), "depends on the order in which rows come"),
        (lambda: F.collect_list("value"), "depends on the order in which rows come"),
        (lambda: F.collect_set("value"), "put sort_array or size around it"),
        (lambda: F.sum("share"), "cast to decimal, or give a tolerance"),
        (lambda: F.stddev("value"), "cast to decimal, or give a tolerance"),
        (lambda: F.percentile_approx("value", 0.5), "depends on the order in which rows come"),
        (lambda: F.hll_sketch_agg("value"), "depends on the order in which rows come"),
        (lambda: F.regr_slope("value", "value"), "cast to decimal, or give a tolerance"),
        (lambda: F.mode("value"), "of values that are as frequent it takes any"),
    ],
)
def test_aggregates_that_depend_on_order_are_refused(spark, tmp_path, aggregate, message):
    declared = {"declare": window_table, "window": tumbling("1 minute"), "keys": ["user"]}
    with pytest.raises(DeclarationError, match=message):
        checked(spark, tmp_path, per_minute(aggregate().alias("x")), **declared)
    checked(spark, tmp_path, per_minute(aggregate().alias("x")), **declared, deterministic=False)


def test_keys_of_which_texts_that_differ_are_one_are_refused(spark, tmp_path):
    grouped = "SELECT collate(user, 'UTF8_LCASE') user, count(*) n FROM {clicks} GROUP BY 1"
    with pytest.raises(DeclarationError, match=r"keys=user: by its collation .*lower\("):
        checked(spark, tmp_path, in_sql(grouped), declare=keyed_table, keys=["user"])


def test_what_two_runs_agree_on_is_not_refused(spark, tmp_path):
    found = per_minute(
        F.sum("value"), F.avg("value"), F.max_by("value", "at"), F.sum(F.col("share").cast("decimal(20,4)")),
        F.size(F.collect_set("value")), F.sort_array(F.collect_list("value")), F.approx_count_distinct("value"),
        F.mode("value", True), F.expr("listagg(user, ',') WITHIN GROUP (ORDER BY user)"),
        F.max(F.lit("now").cast("string")),
    )  # fmt: skip
    checked(
        spark, tmp_path, found, declare=window_table, window=tumbling("1 minute"), keys=["user"]
    )
    checked(
        spark,
        tmp_path,
        per_minute(F.sum("share")),
        declare=window_table,
        window=tumbling("1 minute"),
        keys=["user"],
        tolerance=1e-9,
    )
    checked(
        spark,
        tmp_path,
        lambda c: c.withColumn("n", F.explode(F.array("value", "value"))).where("n > 0"),
    )


def test_what_a_subquery_asks_of_all_rows_is_what_its_table_is_made_of(spark, tmp_path):
    """Of a window table its own window; of a keyed one all rows; within an interval rows that it is tied to."""
    asked = "SELECT window, user, count(*) n FROM {{clicks}} c WHERE EXISTS (SELECT 1 FROM {{clicks}} d WHERE {}) GROUP BY ALL"
    per_window = {"declare": window_table, "window": tumbling("1 hour"), "keys": ["user"]}
    for untied in (
        "d.user = c.user",
        "d.window.start <= c.window.start",
        "d.window = c.window OR d.value > 9",
    ):
        with pytest.raises(DeclarationError, match="operators=Subquery: it is over all windows"):
            checked(spark, tmp_path, in_sql(asked.format(untied)), **per_window)
    for tied in ("d.window = c.window", "d.value > 9 AND c.window <=> d.window"):
        checked(spark, tmp_path, in_sql(asked.format(tied)), **per_window)
    for values, accepted in (("window", True), ("named_struct('start', at, 'end', at)", False)):
        known = f"SELECT window, user, count(*) n FROM {{clicks}} WHERE window IN (SELECT {values} FROM {{clicks}}) GROUP BY ALL"
        with (
            nullcontext()
            if accepted
            else pytest.raises(DeclarationError, match="operators=Subquery")
        ):
            checked(spark, tmp_path, in_sql(known), **per_window)
    near = (
        "SELECT * FROM {clicks} c WHERE EXISTS (SELECT 1 FROM {clicks} d WHERE d.user = c.user AND "
        "d.at BETWEEN c.at AND c.at + interval 1 minute)"
    )
    checked(spark, tmp_path, in_sql(near), context=around(after="1 minute"))
    whole = "SELECT * FROM {clicks} WHERE value > (SELECT avg(value) FROM {clicks})"
    with pytest.raises(DeclarationError, match="operators=Subquery"):
        checked(spark, tmp_path, in_sql(whole), context=around(after="1 minute"))
    rows = spark.createDataFrame([], "user STRING, value BIGINT, _arrival STRUCT<time: TIMESTAMP>")
    by_user = "SELECT user, count(*) n FROM {clicks} WHERE value IN (SELECT value + 1 FROM {clicks}) GROUP BY user"
    assert not shapes.is_one_aggregation(in_sql(by_user)(rows), ["user"])


def test_a_table_without_reconcile_runs_and_is_shown_as_unverifiable(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    stage.feed("clicks", [{"user": "a", "at": "2026-01-01T00:00:00Z", "value": 1, "share": 0.1}])
    stage.advance("clicks", {"user": "a", "at": "2026-01-01T01:00:00Z", "value": 1, "share": 0.1})
    stage.run("unreconciled")
    certificate = reconciliation.reconcile(
        stage.session, stage.session.catalog.table("unreconciled")
    )
    assert (certificate.verdict, certificate.rows_in_table) == (
        "UNVERIFIABLE",
        0,
    ) and "deterministic=False" in certificate.detail


class Clicks(KeyedProcess):
    output = "user STRING, at TIMESTAMP, clicks INT"

    def on_row(self, state, row, timers):
        state["clicks"] = state.get("clicks", 0) + 1
        yield {"user": row["user"], **state}


def test_a_process_function_that_remembers_for_longer_than_its_table_reads_back_is_refused(
    spark, tmp_path
):
    def clicks_so_far(clicks):
        found = process(
            clicks, by=["user"], function=Clicks(), within=timedelta(minutes=10), at="at"
        )
        return found.select("user", F.col("clicks").alias("n"), "at", "_arrival").where("n > 1")

    checked(spark, tmp_path, clicks_so_far, context=around(before="10 minutes"))
    message = r"table=made, within=0:10:00: a range is read from 0:09:59 before it, .*; declare the longer before="
    with pytest.raises(DeclarationError, match=message):
        checked(spark, tmp_path, clicks_so_far, context=around(before="599 seconds"))


def test_places_in_a_window_that_rows_may_share_are_refused(spark, tmp_path):
    per_window = {"declare": window_table, "window": tumbling("1 hour")}
    placed = "SELECT window, user, value FROM (SELECT *, {} AS p FROM {}) WHERE p = 1"
    counted = "(SELECT window, user, count(*) AS value FROM {clicks} GROUP BY window, user)"
    number = "row_number() OVER (PARTITION BY window ORDER BY {})"
    for order, rows in (
        ("value DESC", "{clicks}"),
        ("value DESC, user", "{clicks}"),
        ("_arrival.offset", "{clicks}"),
        ("value DESC", counted),
    ):
        with pytest.raises(
            DeclarationError, match=r"expression=row_number\(\).*no two rows have in common"
        ):
            checked(
                spark, tmp_path, in_sql(placed.format(number.format(order), rows)), **per_window
            )
        any_of_them = in_sql(placed.format(number.format(order), rows))
        checked(spark, tmp_path, any_of_them, **per_window, deterministic=False)
    for order, rows in (
        ("value DESC, _arrival", "{clicks}"),
        ("value, _arrival.partition, _arrival.offset", "{clicks}"),
        ("value DESC, user", counted),
        ("struct(value, user)", counted),
        (
            "value DESC, user",
            f"{counted} JOIN (SELECT user, window, max(value) m FROM {{clicks}} GROUP BY ALL) USING (window, user)",
        ),
    ):
        checked(spark, tmp_path, in_sql(placed.format(number.format(order), rows)), **per_window)
    for of_all in (
        "rank() OVER (PARTITION BY window ORDER BY value)",
        "count(*) OVER (PARTITION BY window)",  # whose frame, of all rows, Spark counts in rows
    ):
        checked(spark, tmp_path, in_sql(placed.format(of_all, "{clicks}")), **per_window)
    for columns, refused in (["window", "user"], True), (["window", "_arrival"], False):
        with pytest.raises(DeclarationError, match="Deduplicate") if refused else nullcontext():
            checked(
                spark,
                tmp_path,
                lambda c, by=columns: c.dropDuplicates(by).select("window", "user"),
                **per_window,
            )
    asked = "(SELECT d.share FROM {{clicks}} d WHERE d.window = c.window ORDER BY {} LIMIT 1)"
    newest = f"SELECT window, user, {asked} AS s FROM {{{{clicks}}}} c"
    with pytest.raises(DeclarationError, match="operators=GlobalLimit: of rows that are equal"):
        checked(spark, tmp_path, in_sql(newest.format("d.value")), **per_window)
    checked(spark, tmp_path, in_sql(newest.format("d.value, d._arrival")), **per_window)


@pytest.mark.parametrize(
    "order, source, rows, is_total",
    [
        ("partition, offset", "clicks", "{clicks}", True),
        ("partition, offset", "of_two_topics", "{clicks}", False),
        ("topic, partition, offset", "of_two_topics", "{clicks}", True),
        # each of two topics has such a place, whichever of them a part of the union is of
        ("partition, offset", "of_two_topics", "(SELECT * FROM {clicks} WHERE value > 0)", False),
        ("partition, offset", "clicks", "(SELECT * FROM {clicks} UNION ALL TABLE {clicks})", False),
    ],
)
def test_partition_and_offset_are_a_place_in_one_topic(
    spark, tmp_path, order, source, rows, is_total
):
    by = ", ".join(f"_arrival.{field}" for field in order.split(", "))
    number = f"row_number() OVER (PARTITION BY window ORDER BY {by})"
    made = in_sql(f"SELECT window, user FROM (SELECT *, {number} AS p FROM {rows}) WHERE p = 1")
    with nullcontext() if is_total else pytest.raises(DeclarationError, match="its topic, part"):
        source = replace(globals()[source], name="clicks")
        checked(
            spark,
            tmp_path,
            made,
            source,
            declare=window_table,
            window=tumbling("1 hour"),
            keys=["user"],
        )


def test_all_that_a_function_is_refused_for_is_said_at_once(spark, tmp_path):
    made = in_sql(
        "SELECT max(window) AS window, user, first(value) AS v, now() AS n FROM {clicks} GROUP BY user"
    )
    with pytest.raises(DeclarationError) as refused:
        checked(
            spark, tmp_path, made, declare=window_table, window=tumbling("1 hour"), keys=["user"]
        )
    across, order, clock = sorted(
        str(refused.value).splitlines(), key=lambda line: "two clocks" in line or "first" in line
    )
    assert "operators=Aggregate: it is over all windows" in across
    assert "two clocks" in order + clock and "order in which rows come" in order + clock
