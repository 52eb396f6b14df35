"""Joins of streams: within an interval of event time, and within a window; the same as a stream and in batch."""

import json
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from assets import partitions
from examples.clicks import tables as clicks
from lakehouse import around, duplicates, ingest_table, kafka, row_table, tumbling, window_table
from lakehouse.cli import table_status
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError
from lakehouse.examples.ads import tables as ads
from lakehouse.examples.ads.producer import PRODUCER, ad_campaigns
from lakehouse.ranges import Range
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform import ranges_of

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

view_topic = kafka(
    "views", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, id BIGINT NOT NULL"
)
click_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, id BIGINT NOT NULL"
)
WITHIN = "clicked_at >= at AND clicked_at <= at + interval 10 seconds"


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def events(view_topic: DataFrame, click_topic: DataFrame) -> DataFrame:
    """Two streams that are joined are one record, with one watermark."""
    views = view_topic.withColumn("kind", F.lit("view"))
    return views.unionByName(click_topic.withColumn("kind", F.lit("click")))


def sides(events: DataFrame) -> tuple[DataFrame, DataFrame]:
    clicks = events.where("kind = 'click'").select(
        "user",
        F.col("at").alias("clicked_at"),
        F.col("id").alias("click"),
        F.col("_arrival").alias("_clicked"),
    )
    return events.where("kind = 'view'").drop("kind"), clicks


@row_table(layer="silver", context=around(after="10 seconds"))
def clicked(events: DataFrame) -> DataFrame:
    views, clicks = sides(events)
    return views.join(clicks, "user").where(WITHIN).drop("_clicked")


def counted(events: DataFrame) -> DataFrame:
    """Each view once, with how many clicks followed."""
    views, clicks = sides(events)
    clicks = clicks.withColumnRenamed("user", "clicker")
    both = views.join(clicks, (F.col("user") == F.col("clicker")) & F.expr(WITHIN), "left")
    return both.groupBy("_arrival", "user", "at", "id").agg(F.count("click").alias("clicks"))


@row_table(layer="silver", context=around(after="10 seconds"))
def views_with_clicks(events: DataFrame) -> DataFrame:
    return counted(events)


@row_table(layer="silver", context=around(after="10 seconds"), late="update")
def updated_views(events: DataFrame) -> DataFrame:
    return counted(events)


@row_table(layer="silver", context=around(before="10 seconds", after="10 seconds"))
def either(events: DataFrame) -> DataFrame:
    """Views with their clicks, views without one, clicks without a view."""
    views, clicks = sides(events)
    clicks = clicks.withColumnRenamed("user", "clicker")
    both = views.join(clicks, (F.col("user") == F.col("clicker")) & F.expr(WITHIN), "full")
    return both.select(
        F.coalesce("at", "clicked_at").alias("at"), F.coalesce("_arrival", "_clicked").alias("_arrival"),
        F.coalesce("user", "clicker").alias("user"), "id", "click",
    )  # fmt: skip


@window_table(layer="gold", window=tumbling("1 minute"))
def click_rate(views_with_clicks: DataFrame) -> DataFrame:
    return views_with_clicks.groupBy("window").agg(
        F.count("*").alias("views"), F.count_if(F.col("clicks") > 0).alias("clicked")
    )


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def in_one_window(events: DataFrame) -> DataFrame:
    """Pairs of a view and a click of one user in one window; users with a view alone have none."""
    views, clicks = (
        events.where(f"kind = '{kind}'").select("window", "user", "id")
        for kind in ("view", "click")
    )
    clicks = clicks.withColumnRenamed("id", "click")
    return (
        views.join(clicks, ["window", "user"], "left")
        .groupBy("window", "user")
        .agg(F.count("click").alias("pairs"))
    )


TABLES = ["clicked", "views_with_clicks", "updated_views", "either", "click_rate", "in_one_window"]


def at(seconds: float, id: int, user: str = "u") -> dict:
    return {"user": user, "at": (START + timedelta(seconds=seconds)).isoformat(), "id": id}


def feed(stage: Stage, views: list[dict], clicks: list[dict]) -> None:
    stage.feed("events", views, source="view_topic")
    stage.feed("events", clicks, source="click_topic")


def closed(stage: Stage, hours: int) -> None:
    for _ in range(2):
        feed(stage, [at(3600 * hours, -hours, "last")], [at(3600 * hours, -hours, "end")])


def seen(stage: Stage, name: str, *columns: str) -> list[tuple]:
    rows = stage.rows(name).where("user NOT IN ('last', 'end')").collect()
    return sorted((tuple(r[c] for c in columns) for r in rows), key=str)


@pytest.mark.slow
@pytest.mark.parallel
def test_streams_are_joined_within_an_interval_and_within_a_window(spark, tmp_path):
    stage = Stage(spark, tmp_path, HERE)
    # a topic that has said nothing yet holds nothing back
    feed(stage, [at(-60, 0, "end")], [at(-60, 0, "end")])
    feed(stage, [at(0, 1), at(20, 2), at(3, 3, "v")], [at(10, 11), at(8, 12), at(14, 13, "v")])
    # 10 s after 0 is within, 11 s after 3 is not; the view that a click waits for may come after it
    feed(stage, [at(39, 4), at(21, 5, "w")], [at(25, 14), at(41, 15)])
    stage.run(*TABLES, files_per_batch=3, abort_at="rows")
    feed(stage, [at(60, 6)], [at(70, 17), at(60, 18)])
    # 55 is the watermark: all three are late
    feed(stage, [at(45, 7, "x")], [at(45, 16, "w"), at(22, 19, "w")])
    for hours in (1, 2):
        closed(stage, hours)
    stage.run(*TABLES, files_per_batch=6)
    assert seen(stage, "clicked", "id", "click") == [
        (1, 11),
        (1, 12),
        (2, 14),
        (4, 15),
        (6, 17),
        (6, 18),
    ]
    assert seen(stage, "either", "id", "click") == [
        (1, 11), (1, 12), (2, 14), (3, None), (4, 15), (5, None), (6, 17), (6, 18), (None, 13),
    ]  # fmt: skip
    assert seen(stage, "views_with_clicks", "id", "clicks") == [
        (1, 2),
        (2, 1),
        (3, 0),
        (4, 1),
        (5, 0),
        (6, 2),
    ]
    assert seen(stage, "in_one_window", "user", "pairs") == [
        ("u", 0),
        ("u", 1),
        ("u", 1),
        ("u", 1),
        ("v", 0),
        ("w", 0),
    ]
    rates = sorted((r.window.start.minute, r.views, r.clicked) for r in stage.rows("click_rate").where("views > 1").collect()
                   if r.window.start.astimezone(UTC) < START + timedelta(minutes=2))  # fmt: skip
    assert rates == [(0, 5, 3)], "of the first minute; in the second there is one"
    late = [
        sum(c.late for c in stage.session.commit_log(stage.session.catalog.table(name)).by_stream())
        for name in ("clicked", "click_rate")
    ]
    assert late == [3, 0], "what is late for a join does not come to what reads it"

    assert [c.start for c in stage.update("updated_views")] == [START]
    assert seen(stage, "updated_views", "id", "clicks") == [
        (1, 2),
        (2, 1),
        (3, 0),
        (4, 1),
        (5, 1),
        (6, 2),
        (7, 0),
    ]
    for name in TABLES:
        assert_stream_equals_batch(stage, name)


@pytest.mark.parametrize(
    "declare, function, told",
    [
        (
            row_table(layer="silver"), lambda rows, other: rows.join(other, "user"),
            r"operators=Join: a row table is computed row by row.*context=around\(\.\.\.\)",
        ),
        (
            window_table(layer="silver", window=tumbling("1 minute")),
            lambda rows, other: rows.join(other, "user").groupBy("window").count(), "add window",
        ),
        (
            row_table(layer="silver", context=around(after="1 minute")), lambda rows, other: rows.join(other.distinct(), "user"),
            "operators=Deduplicate: a row table is computed row by row",
        ),
        (
            row_table(layer="silver", context=around(after="1 minute"), deduplicate=duplicates("user", within="1 minute")),
            lambda rows, other: rows.join(other, "user"),
            "context=0:00:00 before to 0:01:00 after: it is for tables without deduplicate=",
        ),
    ],
    ids=["without an interval", "across windows", "of all rows", "duplicates"],
)  # fmt: skip
def test_a_join_that_depends_on_how_much_is_read_at_once_is_refused(
    spark, tmp_path, declare, function, told
):
    module = ModuleType("joined_module")
    module.view_topic, module.click_topic, module.events = view_topic, click_topic, events

    def joined(events):
        return function(
            events, events.where("kind = 'click'").select("user", F.col("id").alias("click"))
        )

    joined.__module__ = "joined_module"
    module.joined = declare(joined)
    with pytest.raises(DeclarationError, match=told):
        Stage(spark, tmp_path, module)


@pytest.mark.slow
@pytest.mark.parallel
def test_click_rates_are_those_of_the_oracle(spark, tmp_path):
    stage = Stage(spark, tmp_path, ads, clicks)
    workload = replace(PRODUCER.workload, rate=1_500, late_share=0.0, malformed_share=0.0)
    begin = int(START.timestamp() * 1000)
    sent = [record.value for record in PRODUCER.records(workload, begin, begin + 40_000)]
    for n in range(0, len(sent), 20_000):
        stage.feed("ad_events", sent[n : n + 20_000])
    stage.run("views_with_clicks", "click_rates")
    last = json.loads(sent[0])
    for hours in (1, 2):
        stage.advance(
            "ad_events", last | {"event_type": "view", "event_time": str(begin + hours * 3_600_000)}
        )
    stage.run("views_with_clicks", "click_rates")
    rows = stage.rows("click_rates").where(F.col("window.start") == F.lit(START)).collect()
    found = {r.campaign_id: (r.views, r.clicked) for r in rows}
    assert found == expected_rates([json.loads(value) for value in sent])
    assert sum(clicked for _, clicked in found.values()) > 100
    assert [r.rate for r in rows] == [r.clicked / r.views for r in rows]
    for name in ("views_with_clicks", "click_rates"):
        assert_stream_equals_batch(stage, name)


def expected_rates(events: list[dict]) -> dict[str, tuple[int, int]]:
    """Campaign -> (views, views with a click by their user on their ad within 10 s)."""
    campaign_of, clicked_at = ad_campaigns(), defaultdict(list)
    for event in events:
        if event["event_type"] == "click":
            clicked_at[event["user_id"], event["ad_id"]].append(int(event["event_time"]))
    views, clicked = Counter(), Counter()
    for event in events:
        campaign, at = campaign_of[event["ad_id"]], int(event["event_time"])
        # a few are of the minute before
        if event["event_type"] == "view" and at >= START.timestamp() * 1000:
            views[campaign] += 1
            clicked[campaign] += any(
                at <= then <= at + 10_000 for then in clicked_at[event["user_id"], event["ad_id"]]
            )
    return {campaign: (views[campaign], clicked[campaign]) for campaign in views}


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_a_range_reads_and_reaches_as_far_as_the_interval():
    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    span = Range(START, START + hour)
    wide = replace(clicked, context=around(before="90 minutes", after="1 minute"))
    assert ranges_of.context(span, wide) == Range(START - 90 * minute, START + hour + minute)
    assert ranges_of.reached(wide, span) == Range(START - minute, START + hour + 90 * minute)
    mapped = partitions.mapping(wide)
    assert (mapped.start_offset, mapped.end_offset) == (-2, 1), (
        "the hours of its input that Dagster shows an hour to read"
    )


def test_an_interval_reaches_somewhere():
    with pytest.raises(DeclarationError, match="it needs before= or after="):
        around()
    declared = catalog_of([HERE]).table("either")
    assert (
        table_status.declaration(catalog_of([HERE]), declared)["context"]
        == "0:00:10 before to 0:00:10 after"
    )
