"""Tables of which Spark's optimiser removes the whole plan: no row can come, and what arrived is counted all the same."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    around,
    duplicates,
    expect,
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
from lakehouse.reconcile import reconciliation
from lakehouse.stream.engines import early_results
from lakehouse.testing import Stage
from lakehouse.transform.versions import as_of_join

HERE = sys.modules[__name__]
pytestmark = [pytest.mark.slow, pytest.mark.parallel]
START = datetime(2026, 1, 1, tzinfo=UTC)

click_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, id BIGINT NOT NULL"
)
ad_campaigns = files(
    "../../lakehouse/examples/ads/ad_campaigns.csv", schema="ad_id STRING, campaign_id STRING"
)
constant_topic = kafka("constants", schema="at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(click_topic: DataFrame) -> DataFrame:
    return click_topic


@ingest_table(
    layer="bronze",
    event_time="at",
    expectations=[expect.column_values_to_be_between("one", min_value=2)],
)
def constants(constant_topic: DataFrame) -> DataFrame:
    """Each row is quarantined."""
    return constant_topic.withColumn("one", F.lit(1))


@reference_table(layer="silver")
def nobody(ad_campaigns: DataFrame) -> DataFrame:
    return ad_campaigns.where("ad_id = 'nobody'").withColumnRenamed("ad_id", "user")


@keyed_table(layer="gold", keys=["user"])
def totals(clicks: DataFrame) -> DataFrame:
    """A keyed table, not run here: it has no rows yet."""
    return clicks.groupBy("user").agg(F.count("*").alias("clicks"))


@row_table(layer="silver")
def known(clicks: DataFrame, nobody: DataFrame) -> DataFrame:
    return clicks.join(F.broadcast(nobody), "user")


@row_table(layer="silver")
def wide(clicks: DataFrame, nobody: DataFrame) -> DataFrame:
    return clicks.join(F.broadcast(nobody), "user")


@row_table(layer="silver")
def known_from_left(clicks: DataFrame, nobody: DataFrame) -> DataFrame:
    return nobody.join(clicks, "user")


@row_table(layer="silver")
def known_in_full(clicks: DataFrame, nobody: DataFrame) -> DataFrame:
    """An inner join by sorting."""
    return clicks.join(nobody.hint("merge"), "user")


@row_table(layer="silver")
def with_totals(clicks: DataFrame, totals: DataFrame) -> DataFrame:
    return clicks.join(totals, "user")


@row_table(layer="silver")
def never(clicks: DataFrame) -> DataFrame:
    return clicks.where("1 = 0")


@row_table(layer="silver", late="update")
def never_updated(clicks: DataFrame) -> DataFrame:
    return clicks.where("id = 1 AND id = 2")


@row_table(layer="silver", deduplicate=duplicates("id", within="1 minute"))
def never_twice(clicks: DataFrame) -> DataFrame:
    return clicks.where(F.lit(False))


@row_table(layer="silver", context=around(after="10 seconds"))
def never_joined(clicks: DataFrame) -> DataFrame:
    return clicks.where("1 = 0")


@row_table(layer="silver", expectations=[expect.column_values_to_be_between("one", min_value=2)])
def all_quarantined(clicks: DataFrame) -> DataFrame:
    return clicks.withColumn("one", F.lit(1))


@versioned_table(layer="silver", keys=["user"])
def never_kept(clicks: DataFrame) -> DataFrame:
    return clicks.where("1 = 0")


@row_table(layer="silver")
def never_then(clicks: DataFrame, never_kept: DataFrame) -> DataFrame:
    return as_of_join(clicks, never_kept, on="user", at="at", take={"known": "id"}).where(
        "known IS NOT NULL"
    )


@keyed_table(layer="gold", keys=["user"])
def never_totalled(clicks: DataFrame) -> DataFrame:
    return clicks.where("1 = 0").groupBy("user").agg(F.count("*").alias("clicks"))


@keyed_table(layer="gold", keys=["user"])
def never_latest(clicks: DataFrame) -> DataFrame:
    return clicks.where("1 = 0").groupBy("user").agg(F.max_by("id", "at").alias("id"))


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"], early_results="1 second")
def never_counted(clicks: DataFrame) -> DataFrame:
    return clicks.where("1 = 0").groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def never_counted_soon(clicks: DataFrame) -> DataFrame:
    return clicks.where("1 = 0").groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=session("10 seconds"), keys=["user"])
def never_in_session(clicks: DataFrame) -> DataFrame:
    return clicks.where("1 = 0").groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"])
def known_counted(clicks: DataFrame, nobody: DataFrame) -> DataFrame:
    return clicks.join(nobody, "user").groupBy("window", "user").agg(F.count("*").alias("clicks"))


@window_table(layer="gold", window=tumbling("1 minute"), keys=["user"])
def never_seen_counted(never: DataFrame) -> DataFrame:
    """Behind a table that stays empty."""
    return never.groupBy("window", "user").agg(F.count("*").alias("clicks"))


in_sql = row_table(layer="silver")(
    sql("in_sql", "SELECT clicks.* FROM {nobody} nobody JOIN {clicks} clicks USING (user)")
)
ROWS = [
    "known",
    "known_from_left",
    "known_in_full",
    "with_totals",
    "never",
    "never_updated",
    "never_twice",
    "in_sql",
]


def at(seconds: float, id: int, user: str = "u") -> dict:
    return {"user": user, "at": (START + timedelta(seconds=seconds)).isoformat(), "id": id}


@pytest.fixture(scope="module")
def fed(spark, tmp_path_factory) -> Stage:
    """Seven rows; the last one, of an hour that is over by then, is late."""
    stage = Stage(spark, tmp_path_factory.mktemp("fed"), HERE)
    stage.feed("clicks", [at(0, 1), at(20, 2, "v"), at(3, 3)])
    stage.feed("clicks", [at(4000, 4)])
    stage.feed("clicks", [at(4001, 5)])
    stage.feed("clicks", [at(4002, 6), at(1, 7)])
    return stage


def counts(stage: Stage, name: str) -> dict[str, int]:
    """What the commit log of a table adds up to."""
    commits = list(stage.session.commit_log(stage.session.catalog.table(name)).by_stream())
    return {
        what: sum(getattr(c, what) for c in commits)
        for what in ("arrived", "late", "written", "quarantined")
    }


def check(stage: Stage, name: str, frontier: float, **wanted: int) -> None:
    assert counts(stage, name) == {"arrived": 7, "late": 1, "written": 0, "quarantined": 0} | wanted
    assert stage.frontier(name) == START + timedelta(seconds=frontier), "the watermark goes on"
    assert (
        reconciliation.reconcile(stage.session, stage.session.catalog.table(name)).verdict
        == "EQUAL"
    )


@pytest.mark.parametrize("name", ROWS)
def test_a_row_table_counts_what_arrived_and_what_was_late(fed, name):
    fed.run(name, abort_at="rows" if name == "never" else None)
    check(fed, name, 3997)


@pytest.mark.parametrize("name", ["never_counted", "never_in_session", "known_counted"])
def test_a_window_table_counts_what_arrived_and_what_was_late(fed, name):
    fed.run(name, abort_at="rows" if name == "never_counted" else None)
    check(fed, name, 3997)


def test_a_window_table_that_closes_ranges_counts_what_arrived_and_what_was_late(fed):
    fed.run("never_counted_soon")
    check(fed, "never_counted_soon", 3997)


@pytest.mark.parametrize(
    ("name", "frontier", "late"),
    [("never_kept", 3997, 1), ("never_totalled", 3997, 0), ("never_latest", 3997, 0)],
)
def test_a_keyed_table_counts_what_arrived(fed, name, frontier, late):
    """A table filled by steps counts the late row, as one of Spark's own queries does not."""
    fed.run(name)
    check(fed, name, frontier, late=late)


def test_joins_within_an_interval_and_as_of_an_instant_count_what_arrived(fed):
    fed.run("never_kept", "never_joined", "never_then")
    check(fed, "never_joined", 3987)
    check(fed, "never_then", 3997)  # as far as the history


def test_rows_that_all_break_an_expectation_are_put_aside(fed):
    fed.run("all_quarantined", abort_at="rows")
    check(fed, "all_quarantined", 3997, quarantined=6)
    assert fed.rows("all_quarantined", side="quarantine").count() == 6
    fed.feed("constants", [{"at": START.isoformat()}])
    assert counts(fed, "constants") == {"arrived": 1, "late": 0, "written": 0, "quarantined": 1}


def test_early_results_are_empty_then(fed):
    early_results.settle(fed.session, fed.session.catalog.table("never_counted"))
    assert fed.rows("never_counted", side="early").count() == 0


def test_what_reads_a_table_that_stays_empty_waits_for_its_first_row(fed):
    fed.run("never", "never_seen_counted")
    assert fed.rows("never_seen_counted").count() == 0


def test_without_generated_code_what_is_joined_with_nothing_is_counted_too(fed):
    """Of more than a hundred columns Spark generates no code, and a join with nothing does not read its other side."""
    fed.session.spark.conf.set("spark.sql.codegen.wholeStage", "false")
    try:
        fed.run("wide")
    finally:
        fed.session.spark.conf.unset("spark.sql.codegen.wholeStage")
    check(fed, "wide", 3997)
