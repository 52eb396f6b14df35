"""A record of several topics: one watermark, the least of them, so that the slower topic's rows are not late."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from pyspark.sql import functions as F

from lakehouse import files, ingest_table, kafka
from lakehouse.errors import DeclarationError
from lakehouse.testing import Stage, assert_stream_equals_batch
from support import purchases
from support.purchases import START, till, web


def counted(stage: Stage) -> dict[int, int]:
    rows = stage.rows("purchase_counts").collect()
    return {
        int((r.window.start.astimezone(UTC) - START).total_seconds()): r.purchases for r in rows
    }


def late(stage: Stage) -> int:
    return sum(
        c.late
        for c in stage.session.commit_log(
            stage.session.catalog.table("purchase_counts")
        ).by_stream()
    )


@pytest.mark.slow
@pytest.mark.parallel
def test_a_topic_that_is_read_more_slowly_holds_the_watermark_back(stage_of):
    stage = stage_of(purchases)
    stage.feed("purchases", till(0), source="till_topic")
    stage.feed("purchases", web(*range(0, 120, 5)), source="web_topic")
    for second in (3, 31, 62):
        stage.feed("purchases", till(second), source="till_topic")
        stage.feed("purchases", web(121 + second), source="web_topic")
    stage.run("purchase_counts", files_per_batch=1)
    assert stage.frontier("purchase_counts") == START + timedelta(seconds=57), (
        "the slower topic's head, less the delay"
    )
    assert late(stage) == 0
    assert counted(stage) == {0: 4, 10: 2, 20: 2, 30: 3, 40: 2}
    assert_stream_equals_batch(stage, "purchase_counts")


@pytest.mark.slow
@pytest.mark.parallel
def test_a_topic_gone_quiet_holds_nothing_back_and_its_backlog_is_late(stage_of):
    stage = stage_of(purchases)
    stage.feed("purchases", till(0), source="till_topic")
    # a batch a second: more than `idle_timeout` without a sale at a till
    for second in range(1, 60, 10):
        stage.feed("purchases", web(second), source="web_topic")
    stage.feed("purchases", till(5, 58), source="till_topic")
    stage.advance("purchases", web(100)[0], source="web_topic")
    stage.advance("purchases", till(100)[0], source="till_topic")
    stage.run("purchase_counts")
    assert late(stage) == 1, "of the backlog, what falls into a window that has closed"
    assert counted(stage) == {0: 2, 10: 1, 20: 1, 30: 1, 40: 1, 50: 2}
    assert_stream_equals_batch(stage, "purchase_counts")


def test_each_topic_has_its_own_rules_and_a_bad_row_names_its_topic(stage_of):
    stage = stage_of(purchases)
    early = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp())
    stage.feed("purchases", [{"card": "t", "sold_ms": early * 1000}, "junk"], source="till_topic")
    stage.feed(
        "purchases",
        [{"customer": "w", "at": "2024-01-01T00:00:00Z"}, {"customer": "w"}],
        source="web_topic",
    )
    aside = Counter(
        (r._arrival.topic, r.reason) for r in stage.rows("purchases", "quarantine").collect()
    )
    assert aside == {
        ("tills", "event time before 2025-01-01T00:00:00Z"): 1,
        (
            "tills",
            "not a JSON object of the declared types: it is not JSON, at character 1 of 4",
        ): 1,
        ("web", "missing field: at"): 1,
    }
    assert [r._arrival.topic for r in stage.rows("purchases").collect()] == ["web"]


@pytest.mark.parametrize(
    "function, told",
    [
        (lambda a, b: a, "inputs=second: an ingest table keeps every row that it reads; add it"),
        (
            lambda a, b: a.unionByName(a),
            "inputs=second: an ingest table keeps every row that it reads; add it",
        ),
        (
            lambda a, b: a.unionByName(b).unionByName(b),
            "operators=.*: an ingest table keeps every row",
        ),
        (
            lambda a, b: a.union(b).distinct(),
            "operators=Deduplicate: an ingest table keeps every row",
        ),
    ],
    ids=["one left out", "one twice instead", "one twice", "distinct"],
)
def test_a_union_that_loses_or_doubles_rows_is_refused(spark, tmp_path, function, told):
    def united(first, second):
        return function(first, second)

    with pytest.raises(DeclarationError, match=told):
        Stage(
            spark,
            tmp_path,
            module(united, first=kafka("one", schema=AT), second=kafka("two", schema=AT)),
        )


def test_three_topics_in_a_row_are_united(spark, tmp_path):
    def united(first, second, third):
        return (
            first.unionByName(second)
            .withColumn("n", F.lit(1))
            .unionByName(third.withColumn("n", F.lit(2)))
        )

    topics = {name: kafka(name, schema=AT) for name in ("first", "second", "third")}
    stage = Stage(spark, tmp_path, module(united, **topics))
    for name in topics:
        stage.feed("united", [{"at": "2026-01-01T00:00:00Z"}], source=name)
    assert sorted((r._arrival.topic, r.n) for r in stage.rows("united").collect()) == [
        ("first", 1),
        ("second", 1),
        ("third", 2),
    ]


def test_a_record_does_not_read_one_topic_twice_nor_files(spark, tmp_path):
    def united(first, second):
        return first.unionByName(second)

    with pytest.raises(
        DeclarationError, match="two of them are one topic, so each row would be there twice"
    ):
        Stage(
            spark,
            tmp_path,
            module(united, first=kafka("one", schema=AT), second=kafka("one", schema=AT)),
        )
    with pytest.raises(DeclarationError, match="an ingest table reads topics only"):
        Stage(
            spark,
            tmp_path,
            module(united, first=kafka("one", schema=AT), second=files("x.csv", schema=AT)),
        )


AT = "at TIMESTAMP NOT NULL"


def module(function, **sources) -> ModuleType:
    made = ModuleType("united_module")
    for name, source in sources.items():
        setattr(made, name, source)
    function.__module__ = "united_module"
    made.united = ingest_table(layer="bronze", event_time="at")(function)
    return made
