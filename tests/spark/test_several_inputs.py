"""Tables that read several inputs with event time: joins and unions across topics, each late by its own watermark."""

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from batch_jobs import maintain, planning
from lakehouse import (
    around,
    count,
    duplicates,
    ingest_table,
    kafka,
    row_table,
    session,
    sql,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.batch import batch_state, late_merge
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError, JobError
from lakehouse.maintenance import erasure
from lakehouse.ranges import Range
from lakehouse.reconcile import coverage, reconciliation
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.stream import handover, queries
from lakehouse.testing import COMMIT_POINTS, Stage, assert_stream_equals_batch
from lakehouse.transform.analysis import validation
from lakehouse.transform.versions import as_of_join
from support.sensors_job import awaited

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = Range(START, START + timedelta(hours=1))

ad_topic = kafka(
    "ads", schema="ad BIGINT NOT NULL, at TIMESTAMP NOT NULL", quiet_timeout="1 minute"
)
sale_topic = kafka("sales", schema="ad BIGINT NOT NULL, sold TIMESTAMP NOT NULL, price BIGINT")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def ads(ad_topic: DataFrame) -> DataFrame:
    return ad_topic


@ingest_table(layer="bronze", event_time="sold", delay="20 seconds")
def sales(sale_topic: DataFrame) -> DataFrame:
    return sale_topic


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["ad"])
def in_windows(ads: DataFrame, sales: DataFrame) -> DataFrame:
    """What was shown and what was sold of an ad in the same ten seconds."""
    shown = ads.groupBy("window", "ad").agg(F.count("*").alias("shown"))
    sold = sales.groupBy("window", "ad").agg(F.sum("price").alias("turnover"))
    return shown.join(sold, ["window", "ad"], "full").na.fill(0)


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["ad"], late="update")
def in_updated_windows(ads: DataFrame, sales: DataFrame) -> DataFrame:
    sold = sales.groupBy("window", "ad").agg(F.sum("price").alias("turnover"))
    return ads.groupBy("window", "ad").agg(F.count("*").alias("shown")).join(sold, ["window", "ad"])


@row_table(layer="silver", context=around(before="15 seconds"))
def near(sales: DataFrame, ads: DataFrame) -> DataFrame:
    """Sales, with each time that their ad was shown in the fifteen seconds before."""
    shown = ads.select(F.col("ad").alias("of"), F.col("at").alias("shown"))
    before = F.expr("of = ad AND shown <= sold AND shown >= sold - interval 15 seconds")
    return sales.join(shown, before, "left").drop("of")


@row_table(layer="silver")
def both(ads: DataFrame, sales: DataFrame) -> DataFrame:
    """A union: what happened to an ad, whichever topic says so."""
    sold = sales.select("ad", F.col("sold").alias("at"), F.lit("sold").alias("what"), "_arrival")
    return ads.select("ad", "at", F.lit("shown").alias("what"), "_arrival").unionByName(sold)


@window_table(layer="gold", window=session("10 seconds"), keys=["ad"])
def visits(ads: DataFrame, sales: DataFrame) -> DataFrame:
    every = ads.select("window", "ad").unionByName(sales.select("window", "ad"))
    return every.groupBy("window", "ad").agg(F.count("*").alias("events"))


in_sql = window_table(layer="gold", window=tumbling("20 seconds"), keys=["what"])(
    sql(
        "in_sql",
        "SELECT window, what, count(*) AS events FROM {both} LEFT SEMI JOIN {in_windows} USING (window, ad) "
        "GROUP BY window, what",
    )
)
change_topic = kafka("changes", schema="ad BIGINT NOT NULL, since TIMESTAMP NOT NULL, owner STRING")


@ingest_table(layer="bronze", event_time="since", delay="5 seconds")
def changes(change_topic: DataFrame) -> DataFrame:
    return change_topic


@versioned_table(layer="silver", keys=["ad"])
def owners(changes: DataFrame) -> DataFrame:
    return changes


@row_table(layer="silver")
def owned_sales(sales: DataFrame, owners: DataFrame) -> DataFrame:
    return as_of_join(sales, owners, on="ad", at="sold", take=["owner"])


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["owner"])
def turnover(owned_sales: DataFrame) -> DataFrame:
    return owned_sales.groupBy("window", "owner").agg(F.sum("price").alias("turnover"))


TABLES = ["in_windows", "in_updated_windows", "near", "both", "visits", "in_sql"]


def shown(seconds: float, ad: int = 1) -> dict:
    return {"ad": ad, "at": (START + timedelta(seconds=seconds)).isoformat()}


def sold(seconds: float, ad: int = 1, price: int = 10) -> dict:
    return {"ad": ad, "sold": (START + timedelta(seconds=seconds)).isoformat(), "price": price}


def owned(seconds: float, owner: str, ad: int = 1) -> dict:
    return {"ad": ad, "since": (START + timedelta(seconds=seconds)).isoformat(), "owner": owner}


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def empty(spark, tmp_path_factory) -> Stage:
    return Stage(spark, tmp_path_factory.mktemp("inputs"), HERE)


@pytest.fixture
def stage(empty, tmp_path) -> Stage:
    return empty.copied(tmp_path)


def rows(stage: Stage, name: str, *columns: str) -> list[tuple]:
    return sorted(tuple(row) for row in stage.rows(name).select(*columns).collect())


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_goes_as_far_as_all_of_its_inputs_have_come(stage):
    stage.feed("ads", [shown(1), shown(2), shown(12), shown(13, ad=2)])
    stage.feed("sales", [sold(4), sold(5, price=7)])
    stage.advance("ads", shown(100))
    stage.run(*TABLES)
    assert stage.frontier("ads") == after(95) and stage.frontier("in_windows") <= after(0)
    assert not stage.rows("in_windows").count(), (
        "sales are only known up to two seconds before the first"
    )
    stage.advance("sales", sold(50))
    stage.run(*TABLES)
    assert stage.frontier("in_windows") == after(30)
    assert rows(stage, "in_windows", "ad", "shown", "turnover") == [
        (1, 1, 0),
        (1, 2, 17),
        (2, 1, 0),
    ]
    assert [(price, shown.second) for price, shown in rows(stage, "near", "price", "shown")] == [
        (7, 1), (7, 2), (10, 1), (10, 2),
    ]  # fmt: skip
    assert [what for _, what in rows(stage, "both", "ad", "what")].count("shown") == 6
    for name in TABLES[:-1]:
        assert_stream_equals_batch(stage, name)


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_several_inputs_are_followed_step_by_step_through_crashes(stage):
    for number, point in enumerate(COMMIT_POINTS):
        begin = number * 60
        clicked = [shown(begin + s, ad=s % 3) for s in range(0, 60, 4)]
        stage.feed("ads", clicked[::-1], abort_at=point)
        if number != 1:  # then only one of them has news
            stage.feed("sales", [sold(begin + s, ad=s % 3, price=s) for s in range(0, 60, 7)])
        stage.run(*TABLES, files_per_batch=1, abort_at=point, by_spark=bool(number % 2))
    stage.advance("ads", shown(3600))
    stage.run(*TABLES, files_per_batch=1)
    stage.advance("sales", sold(3600))
    stage.run(*TABLES, files_per_batch=1)
    assert {(name, point) for name, point in stage.crashes if name == "both"} == {
        ("both", point) for point in COMMIT_POINTS
    }
    for name in TABLES:
        assert_stream_equals_batch(stage, name)
    assert stage.rows("both").count() == stage.rows("ads").count() + stage.rows("sales").count()
    commits = list(stage.session.commit_log(stage.session.catalog.table("both")).by_stream())
    assert sum(c.arrived for c in commits) == stage.rows("both").count()
    turnover = stage.rows("in_windows").agg(F.sum("turnover")).first()[0]
    assert turnover == 3 * sum(range(0, 60, 7))


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_late_rows_of_each_input_are_counted_shown_and_merged(stage):
    stage.feed("ads", [shown(1), shown(12)])
    stage.feed("sales", [sold(2), sold(13)])
    stage.advance("ads", shown(3700))
    stage.advance("sales", sold(3700))
    stage.run("in_windows", "in_updated_windows")
    stage.feed("sales", [sold(3, price=50), sold(3690, price=1)])
    stage.feed("ads", [shown(14), shown(15)])
    stage.run("in_windows", "in_updated_windows")
    table = stage.session.catalog.table("in_updated_windows")
    counted = list(stage.session.commit_log(table).by_stream())
    assert sum(c.late for c in counted) == 3, "and one sale is on time"
    late = late_merge.late_rows(stage.session, table).select("ad", "at", "sold", "window.start")
    assert sorted((r.at is None, r.sold is None, r.start.second) for r in late.collect()) == [
        (False, True, 10), (False, True, 10), (True, False, 0),
    ]  # fmt: skip
    stage.update("in_updated_windows")
    found = rows(stage, "in_updated_windows", "ad", "shown", "turnover")
    assert found[:2] == [(1, 1, 60), (1, 3, 10)], found
    assert rows(stage, "in_windows", "ad", "shown", "turnover")[0] == (1, 1, 10)
    for name in ("in_windows", "in_updated_windows"):
        assert_stream_equals_batch(stage, name)
    assert not batch_state.read(stage.session, table).dirty


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_what_is_changed_in_one_of_the_inputs_is_found_and_followed(stage):
    stage.feed("ads", [shown(1), shown(12)])
    stage.feed("sales", [sold(2), sold(13)])
    stage.advance("ads", shown(3700))
    stage.advance("sales", sold(3700))
    stage.run("in_windows", "both")
    table = stage.session.catalog.table("in_windows")
    assert_stream_equals_batch(stage, "in_windows", HOUR)
    path = stage.session.path(stage.session.catalog.table("sales"))
    stage.session.spark.sql(
        f"UPDATE delta.`{path}` SET price = 99 WHERE sold < '2026-01-01 00:00:05'"
    )
    found = reconciliation.reconcile(stage.session, table, HOUR)
    assert found.verdict == "DIFFERENT"
    assert found.cause.startswith("input changed by hand") and "of sales" in found.cause
    stage.backfill("in_windows", HOUR)
    assert rows(stage, "in_windows", "turnover")[-1] == (99,)
    assert_stream_equals_batch(stage, "in_windows", HOUR)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_what_was_valid_then_may_come_from_another_topic(stage):
    chain = ("owners", "owned_sales", "turnover")
    stage.feed("sales", [sold(4), sold(14, price=7), sold(30, price=1)])
    stage.advance("sales", sold(3000, price=0))
    stage.feed("changes", [owned(1, "ann"), owned(10, "bob")])
    stage.run(*chain)
    # the changes are known up to five seconds; when they go on, this table has no news of its own
    assert rows(stage, "owned_sales", "price", "owner") == [(10, "ann")]
    stage.quiet("changes", timedelta(seconds=20))
    stage.run(*chain)
    assert stage.frontier("owned_sales") == stage.frontier("owners") == after(25)
    assert rows(stage, "owned_sales", "price", "owner") == [(7, "bob"), (10, "ann")]
    # a change that came late is valid from the watermark on: what was joined stays as it is
    stage.feed("changes", [owned(3, "eve"), owned(28, "carl")])
    stage.advance("changes", owned(4000, "dan"))
    stage.run(*chain)
    assert rows(stage, "owned_sales", "price", "owner") == [(1, "carl"), (7, "bob"), (10, "ann")]
    for name in chain[1:]:
        assert_stream_equals_batch(stage, name)
    assert (
        reconciliation.reconcile(stage.session, stage.session.catalog.table("owners")).verdict
        == "EQUAL"
    )


def declared(declare) -> None:
    def refused(ads: DataFrame, sales: DataFrame) -> DataFrame:
        return ads

    module = ModuleType("refusing")
    refused.__module__ = module.__name__
    module.__dict__.update(ad_topic=ad_topic, sale_topic=sale_topic, ads=ads, sales=sales)
    module.refused = declare(refused)
    catalog_of([module])


@pytest.mark.parametrize(
    ("declare", "rule"),
    [
        (
            row_table(layer="gold", deduplicate=duplicates("ad", within="1 minute")),
            "order in which rows arrived",
        ),
        (window_table(layer="gold", window=count(3), keys=["ad"]), "order in which rows arrived"),
        (
            window_table(layer="gold", window=tumbling("1 minute"), early_results="5 seconds"),
            "follows one input with event time",
        ),
        (versioned_table(layer="gold", keys=["ad"]), "every row of one ingest table"),
    ],
)
def test_what_follows_one_input_is_refused_of_several(declare, rule):
    with pytest.raises(DeclarationError, match=rule):
        declared(declare)


def test_a_join_of_inputs_without_a_bound_is_refused(stage):
    def unbounded(ads: DataFrame, sales: DataFrame) -> DataFrame:
        return ads.join(sales.select("ad", "price"), "ad")

    catalog = stage.session.catalog
    unbounded.__module__ = __name__
    without = replace(
        catalog, tables={**catalog.tables, "unbounded": row_table(layer="silver")(unbounded)}
    )
    with pytest.raises(DeclarationError, match=r"operators=Join.*context=around"):
        validation.check(replace(stage.session, catalog=without), without.table("unbounded"))


def test_a_table_of_several_inputs_begins_with_all_that_they_have(stage):
    with pytest.raises(JobError, match=r"inputs=ads, sales.*start its job"):
        handover.begin(stage.session, stage.session.catalog.table("in_windows"))


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_what_is_done_to_tables_of_several_inputs_is_planned_followed_and_kept(stage):
    settings, catalog = stage.session.settings, stage.session.catalog
    stage._now = datetime(2026, 1, 2, tzinfo=UTC)  # so that the hour of arrival is over
    stage.feed("ads", [shown(1), shown(2, ad=2), shown(12)])
    stage.feed("sales", [sold(2), sold(13, ad=2, price=5)])
    stage.advance("ads", shown(7300, ad=3))
    stage.advance("sales", sold(7300, ad=3))
    stage.run("in_windows", "both", "near", "in_sql")
    planned = planning.plan(stage.session, "in_windows", HOUR.start, HOUR.end)
    assert (planned.input, planned.input_rows) == ("ads, sales", 5)
    assert [each.table for each in planned.downstream] == ["in_sql"]
    for name in ("in_windows", "both", "near", "in_sql"):
        assert_stream_equals_batch(stage, name, HOUR)
    covered = coverage.coverage(Lakehouse(settings, catalog), catalog.table("in_windows"))
    assert covered.reconciled == 1 and not covered.changed
    # rows are erased once no stream may read them again: in an hour that has passed, two micro-batches on
    stage.wait(timedelta(hours=2))

    def goes_on(second: int, *names: str) -> None:
        stage.feed("ads", [shown(second, ad=3)])
        stage.feed("sales", [sold(second, ad=3)])
        stage.advance("ads", shown(second + 100, ad=3))
        stage.advance("sales", sold(second + 100, ad=3))
        stage.run(*names)

    for number in range(3):
        goes_on(7400 + 200 * number, "in_windows", "both", "near", "in_sql")
    erased = erasure.erase(stage.session, stage.session.catalog.table("sales"), "ad = 1")
    assert erased.rows == 1
    for name in ("in_windows", "both", "near", "in_sql"):
        assert_stream_equals_batch(stage, name, HOUR)
    there = [(ad, sum) for ad, sum in rows(stage, "in_windows", "ad", "turnover") if ad < 3]
    assert there == [(1, 0), (1, 0), (2, 0), (2, 5)]
    assert [(ad, what) for ad, what in rows(stage, "both", "ad", "what") if ad < 3] == [
        (1, "shown"), (1, "shown"), (2, "shown"), (2, "sold"),
    ]  # fmt: skip
    # the streams go on from their places in both inputs
    list(maintain.run(Lakehouse(settings, catalog)))
    goes_on(8400, "in_windows", "both", "near", "in_sql")
    for name in ("in_windows", "both", "near", "in_sql"):
        assert_stream_equals_batch(stage, name)


@pytest.mark.slow
@pytest.mark.parallel
def test_an_input_that_holds_the_others_back_is_named(stage):
    stage.feed("ads", [shown(1)])
    stage.advance("ads", shown(3600))
    query = queries.start(stage.session, stage.session.catalog.table("in_windows"))
    try:
        awaited(lambda: query.trouble, "nobody said what it waits for")
        assert "table=in_windows, input=sales: it is complete up to nothing" in query.trouble
        stage.feed("sales", [sold(2)])
        stage.advance("sales", sold(3600))
        awaited(lambda: not query.trouble and query.recentProgress, "it still waits")
    finally:
        query.stop()
    assert stage.frontier("in_windows") == after(3580)
