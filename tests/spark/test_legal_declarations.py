"""Declarations that Spark refuses, or runs otherwise than one thinks: they run here, or are refused with a remedy."""

import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakehouse import (
    around,
    files,
    ingest_table,
    kafka,
    keyed_table,
    reference_table,
    row_table,
    session,
    sql,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.batch import reference_tables
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.session import Session
from lakehouse.stream.advance import StepFailed
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform import plan
from lakehouse.transform.analysis import validation
from lakehouse.transform.function_inputs import carried
from streaming_jobs.command_groups import views
from streaming_jobs.progress import JobStatus
from streaming_jobs.queries import SupervisedQuery

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

click_topic = kafka(
    "clicks", schema="ad_id STRING NOT NULL, at TIMESTAMP NOT NULL, price BIGINT NOT NULL"
)
ad_campaigns = files(
    "../../lakehouse/examples/ads/ad_campaigns.csv", schema="ad_id STRING, campaign_id STRING"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@reference_table(layer="silver")
def campaigns(ad_campaigns: DataFrame) -> DataFrame:
    return ad_campaigns


@row_table(layer="silver")
def from_the_left(clicks: DataFrame, campaigns: DataFrame) -> DataFrame:
    return campaigns.join(clicks, "ad_id")


in_sql = row_table(layer="silver")(
    sql(
        "in_sql", "SELECT clicks.*, campaign_id FROM {clicks} clicks JOIN {campaigns} USING (ad_id)"
    )
)
snapshot_first = row_table(layer="silver")(
    sql(
        "snapshot_first",
        "SELECT clicks.*, campaign_id FROM {campaigns} JOIN {clicks} clicks USING (ad_id)",
    )
)
history_in_sql = versioned_table(layer="silver", keys=["ad_id"])(
    sql(
        "history_in_sql",
        "SELECT clicks.*, campaign_id FROM {clicks} clicks JOIN {campaigns} USING (ad_id)",
    )
)


@window_table(layer="gold", window=session("10 seconds"))
def sessions_of_all(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("window").agg(F.count("*").alias("clicks"))


@keyed_table(layer="gold", keys=["ad_id"])
def totals(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("ad_id").agg(F.sum("price").alias("paid"))


@row_table(layer="silver")
def with_totals(clicks: DataFrame, totals: DataFrame) -> DataFrame:
    return clicks.join(totals, "ad_id", "left")


@reference_table(layer="gold")
def well_paid(totals: DataFrame) -> DataFrame:
    """A reference table of a state."""
    return totals.where("paid > 10")


@row_table(layer="silver")
def with_well_paid(clicks: DataFrame, well_paid: DataFrame) -> DataFrame:
    return clicks.join(well_paid, "ad_id", "left")


@row_table(layer="silver", context=around(before="10 seconds"))
def framed_by_time(clicks: DataFrame) -> DataFrame:
    frame = Window.partitionBy("ad_id").orderBy(F.unix_micros("at")).rangeBetween(-10_000_000, 0)
    return clicks.withColumn("paid_lately", F.sum("price").over(frame))


def at(seconds: float, ad: str, price: int = 1) -> dict:
    return {"ad_id": ad, "at": (START + timedelta(seconds=seconds)).isoformat(), "price": price}


@pytest.fixture(scope="module")
def fed(spark, tmp_path_factory) -> Stage:
    stage = Stage(spark, tmp_path_factory.mktemp("fed"), HERE)
    one, two = (r.ad_id for r in stage.rows("campaigns").orderBy("ad_id").limit(2).collect())
    stage.feed(
        "clicks",
        [at(0, one, 20), at(8, two), at(30, one, 2), at(9, "of no campaign"), at(18, two, 3)],
    )
    stage.feed("clicks", [at(29, one)])
    for hours in (1, 2):
        stage.advance("clicks", at(3600 * hours, one))
    return stage


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parametrize("name", ["from_the_left", "in_sql", "snapshot_first", "history_in_sql"])
def test_a_snapshot_may_stand_first_and_in_sql(fed, name):
    fed.run(name, files_per_batch=2, abort_at="rows")
    found = fed.rows(name).where("campaign_id IS NOT NULL").select("ad_id", "at").distinct()
    assert (
        found.count()
        == fed.rows("clicks")
        .where("ad_id <> 'of no campaign'")
        .select("ad_id", "at")
        .distinct()
        .count()
    )
    assert_stream_equals_batch(fed, name)


@pytest.mark.slow
@pytest.mark.parallel
def test_sessions_over_all_rows(fed):
    fed.run("sessions_of_all", files_per_batch=2, abort_at="rows")
    found = {
        (r.window.start.astimezone(UTC), r.clicks) for r in fed.rows("sessions_of_all").collect()
    }
    second = (START + timedelta(seconds=29), 2)
    assert {(START, 4), second} <= found, "18 is within ten seconds of 9, 29 is not of 18"
    assert_stream_equals_batch(fed, "sessions_of_all")


def test_a_snapshot_of_a_state_is_empty_before_the_state_exists_and_follows_it_then(fed):
    assert fed.rows("well_paid").count() == 0
    fed.run("totals")
    assert (
        reference_tables.refresh(fed.session, fed.session.catalog.table("well_paid")).written == 1
    )
    [paid] = fed.rows("well_paid").collect()
    assert paid.paid > 20


def session_of(spark, tmp_path, function, declare) -> Session:
    module = ModuleType("declared_here")
    module.click_topic, module.clicks, module.ad_campaigns, module.campaigns = (
        click_topic,
        clicks,
        ad_campaigns,
        campaigns,
    )
    function.__module__ = module.__name__
    setattr(module, function.__name__, declare(function))
    return Session(Settings(root=tmp_path), catalog_of([module]), spark)


def declared(spark, tmp_path, function, declare) -> None:
    session = session_of(spark, tmp_path, function, declare)
    made = session.catalog.table(function.__name__)
    assert plan.plan_of(session, made).schema
    validation.check(session, made)


def test_a_remedy_stands_before_what_spark_says_of_the_same_cause(spark, tmp_path):
    def made(clicks):
        return clicks.join(clicks.select("ad_id", "_arrival"), "ad_id")

    session = session_of(spark, tmp_path, made, row_table(layer="silver"))
    first, *others = validation.refusal(session, session.catalog.table("made")).splitlines()
    assert first.startswith("table=made, operators=Join: ")
    assert any("cannot be run" in each for each in others), others


def by_ad():
    return Window.partitionBy("ad_id").orderBy("at")


@pytest.mark.parametrize(
    "measure",
    [
        lambda: F.sum("price").over(by_ad().rowsBetween(-2, 0)),
        lambda: F.row_number().over(by_ad()),
        lambda: F.lag("price").over(by_ad()),
    ],
    ids=["ROWS BETWEEN", "row_number", "lag"],
)
def test_a_frame_that_counts_rows_is_refused_in_an_interval(spark, tmp_path, measure):
    def made(clicks):
        return clicks.withColumn("measure", measure())

    with pytest.raises(
        DeclarationError,
        match=r"table=made, expression=.*: its frame counts rows, .*; take a frame of",
    ):
        declared(
            spark, tmp_path, made, row_table(layer="silver", context=around(before="10 seconds"))
        )
    declared(
        spark,
        tmp_path,
        made,
        row_table(layer="silver", context=around(before="10 seconds"), deterministic=False),
    )


def ranked(clicks):
    return clicks.withColumn("rank", F.row_number().over(by_ad())).where("rank = 1")


def grouped(clicks):
    return clicks.groupBy("ad_id").agg(F.sum("price").alias("paid"))


def chosen(clicks):
    return clicks.select("ad_id", "at").distinct().select("ad_id")


@pytest.mark.parametrize(
    "function, declare, told",
    [
        (
            ranked,
            keyed_table(layer="silver", keys=["ad_id"]),
            "_arrival belongs to a single row, and a keyed table has .* each ad_id",
        ),
        (
            ranked,
            window_table(layer="silver", window=tumbling("1 minute")),
            "_arrival belongs to a single row, and a window table has .* each window",
        ),
        (
            grouped,
            row_table(layer="silver"),
            "operators=Aggregate: a row table has a row for each .*; .* declare a @window_table and .*, or a @keyed_table",
        ),
        (
            grouped,
            versioned_table(layer="silver", keys=["ad_id"]),
            "operators=Aggregate: a versioned table has a row for each row",
        ),
        (
            chosen,
            row_table(layer="silver"),
            "a row-preserving table keeps _arrival, .* or add the column to select",
        ),
    ],
    ids=[
        "a rank in a state",
        "a rank in a window",
        "groups of rows",
        "groups in a versioned table",
        "a select",
    ],
)
def test_a_refusal_names_the_remedy(spark, tmp_path, function, declare, told):
    with pytest.raises(DeclarationError, match=told):
        declared(spark, tmp_path, function, declare)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT price * 2 AS price FROM {clicks} WHERE price > 1",
        "SELECT price, ad_id FROM (SELECT ad_id, price * 2 AS price, price AS at FROM {clicks}) WHERE price > 2",
        "SELECT explode(array(price * 2)) AS price FROM {clicks} WHERE price > 1",
        "SELECT c.price * 2 AS price FROM {clicks} c JOIN {campaigns} USING (ad_id) WHERE price > 1",
        "SELECT price * 2 AS price FROM {campaigns} d RIGHT JOIN {clicks} c ON c.ad_id = d.ad_id WHERE price > 1",
    ],
)
def test_arrival_and_event_time_of_single_rows_are_kept_by_themselves(spark, query):
    made = [(str(n % 2), datetime(2026, 1, 1, n, tzinfo=UTC), n, (n,)) for n in range(4)]
    clicks = spark.createDataFrame(
        made, "ad_id STRING, at TIMESTAMP, price BIGINT, _arrival STRUCT<offset: BIGINT>"
    ).where("price >= 0")
    campaigns = spark.sql(
        "SELECT '1' AS ad_id, TIMESTAMP '1999-01-01' AS at UNION ALL SELECT '0', NULL"
    )
    inputs = {"clicks": clicks, "campaigns": campaigns}
    used = {name: rows for name, rows in inputs.items() if f"{{{name}}}" in query}
    rows = carried(spark.sql(query, **used), clicks, ["_arrival", "at"])
    found = {(r["price"], r["_arrival"]["offset"], r["at"].hour) for r in rows.collect()}
    hours = {r["price"]: r["at"].hour for r in clicks.collect()}
    assert found == {(4, 2, hours[2]), (6, 3, hours[3])}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) AS n FROM {clicks}",
        "SELECT DISTINCT ad_id FROM {clicks}",
        "SELECT ad_id FROM {clicks} UNION ALL SELECT ad_id FROM {clicks}",
        "SELECT a.ad_id FROM {clicks} a JOIN {clicks} b USING (at)",
        "SELECT d.ad_id FROM {campaigns} d LEFT JOIN {clicks} c ON c.ad_id = d.ad_id",
    ],
)
def test_arrival_is_not_guessed_of_rows_that_are_not_single_ones(spark, query):
    clicks = spark.createDataFrame(
        [], "ad_id STRING, at TIMESTAMP, _arrival STRUCT<offset: BIGINT>"
    )
    campaigns = spark.createDataFrame([], "ad_id STRING, at TIMESTAMP")
    inputs = {"clicks": clicks, "campaigns": campaigns}
    used = {name: rows for name, rows in inputs.items() if f"{{{name}}}" in query}
    rows = spark.sql(query, **used)
    assert carried(rows, clicks, ["_arrival", "at"]) is rows


def test_a_rank_of_reference_rows_is_no_rank_across_windows(spark, tmp_path):
    def best(clicks, campaigns):
        first = F.row_number().over(Window.partitionBy("campaign_id").orderBy("ad_id"))
        one_each = campaigns.withColumn("rank", first).where("rank = 1")
        return (
            clicks.join(one_each, "ad_id")
            .groupBy("window", "campaign_id")
            .agg(F.count("*").alias("clicks"))
        )

    declared(
        spark,
        tmp_path,
        best,
        window_table(layer="silver", window=tumbling("1 minute"), keys=["campaign_id"]),
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_a_state_that_is_read_is_told_with_its_version_at_each_start(fed, capfd):
    table = fed.session.catalog.table("with_totals")
    fed.run("totals")
    query = SupervisedQuery(fed.session, table)
    query.start(available_now=True)
    query.query.awaitTermination()
    said = capfd.readouterr().err
    assert "table=with_totals, input=totals: read as of version 1 of 20" in said
    assert (
        "until the job is started again; a table that is to follow changes reads a versioned table"
        in said
    )
    shown = query.observe()
    assert shown.reads["totals"].startswith("version 1 of 20")
    table = views.queries_table(
        [("p", JobStatus("p", 1, 0.0, 1, 0.0, "running", "", "", queries=(shown,)))]
    )
    assert "reads totals as of version 1 of 20" in "".join(table.columns[0].cells)


@pytest.mark.slow
@pytest.mark.parallel
def test_a_state_that_is_read_through_a_snapshot_of_it_is_told_too(fed, capfd):
    fed.run("totals")
    reference_tables.refresh(fed.session, fed.session.catalog.table("well_paid"))
    capfd.readouterr()
    fed.run("with_well_paid")
    assert "table=with_well_paid, input=well_paid: read as of version " in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parallel
def test_a_query_that_fails_says_its_cause_and_keeps_the_rest_in_a_file(fed):
    def fails(point: str) -> None:
        raise RuntimeError(f"not at {point}")

    query = SupervisedQuery(fed.session, fed.session.catalog.table("framed_by_time"), fails)
    query.start(available_now=True)
    with pytest.raises(StepFailed):
        query.query.awaitTermination()
    assert query.failure() == "RuntimeError: not at begin"
    kept = (
        layout.job_folder(fed.session.settings, query.table.pipeline) / "framed_by_time.failure.txt"
    )
    assert "in fails" in kept.read_text() and "RuntimeError: not at begin" in kept.read_text()
    fed.run("framed_by_time")
    assert_stream_equals_batch(fed, "framed_by_time")
