"""Lookups: each row has the answer that was recorded for it, in the stream and in batch, whatever the service says later."""

import asyncio
import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, lookup, row_table
from lakehouse.batch import compute
from lakehouse.cli import query
from lakehouse.errors import DeclarationError, LookupFailed
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.storage.disk import layout
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.versions import savepoints
from lakehouse.stream import prepared_steps, queries
from lakehouse.stream.advance import StepFailed
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform import creation, lookups
from support.places import Places, serving

# each goes on from where the one before it has left the lakehouse
pytestmark = [pytest.mark.slow, pytest.mark.parallel]
HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = Range(START, START + timedelta(hours=1))
PLACES = Places()

visit_topic = kafka("visits", schema="id BIGINT NOT NULL, at TIMESTAMP NOT NULL, address STRING")


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def visits(visit_topic: DataFrame) -> DataFrame:
    return visit_topic


def get(address: str) -> object:
    try:
        with urllib.request.urlopen(f"{PLACES.url}/{address}", timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as err:
        with err:
            if err.code == 404:
                return None
            raise


HOW = {"schema": "country STRING NOT NULL, opinion BIGINT", "retries": 1, "timeout": "1 second"}


@lookup(**HOW, concurrency=4)
def place(address: str) -> object:
    return get(address)


@lookup(**HOW, on_failure="quarantine")
def strict(address: str) -> object:
    return get(address)


@lookup(**HOW, cache_for="1 hour")
async def lenient(address: str) -> object:
    return await asyncio.to_thread(get, address)


@row_table(layer="silver", lookup=place)
def located(visits: DataFrame) -> DataFrame:
    return (
        visits.withColumn("country", F.col("place.country"))
        .withColumn("opinion", F.col("place.opinion"))
        .drop("place")
    )


@row_table(layer="silver", lookup=strict, late="update")
def checked(visits: DataFrame) -> DataFrame:
    return visits.withColumn("opinion", F.col("strict.opinion")).drop("strict")


@row_table(layer="silver", lookup=lenient)
def loose(visits: DataFrame) -> DataFrame:
    return visits


def at(second: float) -> str:
    return (START + timedelta(seconds=second)).isoformat()


def visit(number: int, address: str | None, second: float = 0) -> dict:
    return {"id": number, "at": at(second or number), "address": address}


@pytest.fixture(scope="module")
def stage(spark, tmp_path_factory):
    with serving(PLACES):
        yield Stage(spark, tmp_path_factory.mktemp("lookups"), HERE)


@pytest.fixture(autouse=True)
def places():
    PLACES.say()


def opinions(stage: Stage, name: str, first: int, last: int) -> dict[int, int | None]:
    rows = stage.rows(name).where(F.col("id").between(first, last)).select("id", "opinion")
    return {row["id"]: row["opinion"] for row in rows.collect()}


def until(holds) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it has not come"
        time.sleep(0.05)


def test_answers_are_recorded_and_repeated(stage):
    PLACES.unknown = {"c"}
    stage.feed(
        "visits", [visit(1, "a"), visit(2, "b"), visit(3, "a"), visit(4, None), visit(5, "c")]
    )
    stage.run("located", abort_at="begin")  # killed when it had asked, before it wrote
    assert PLACES.asked == {"a": 1, "b": 1, "c": 1}
    PLACES.opinion = 2
    stage.feed("visits", [visit(6, "a")])
    stage.advance("visits", visit(99, None, 3700))
    stage.run("located", abort_at="rows", by_spark=True)
    assert PLACES.asked["a"] == 2  # for another row
    recorded = {1: 1, 2: 1, 3: 1, 4: None, 5: None, 6: 2}
    PLACES.opinion = 3
    assert opinions(stage, "located", 1, 6) == recorded
    assert_stream_equals_batch(stage, "located", HOUR)
    stage.backfill("located", HOUR)
    assert PLACES.asked == {"a": 2, "b": 1, "c": 1}, "a batch run asks for nothing that is recorded"


def test_a_range_is_asked_again(stage):
    located, settings = stage.session.catalog.table("located"), stage.session.settings
    PLACES.opinion, PLACES.failing, PLACES.most_open, PLACES.seconds = 4, {"b"}, 0, 0.05
    with pytest.raises(LookupFailed, match="1 of 3 keys have no answer after 2 attempts"):
        compute.backfill(stage.session, located, HOUR, "all")
    pending = reconciliation.reconcile(stage.session, located, HOUR)
    assert pending.verdict == "PENDING", "what was recorded is not in the table yet"
    PLACES.failing = set()
    compute.backfill(stage.session, located, HOUR, "all")
    assert PLACES.asked == {"a": 2, "b": 3, "c": 2} and 1 < PLACES.most_open <= 3
    assert opinions(stage, "located", 1, 6) == {n: 4 if n != 4 else None for n in range(1, 7)}

    shutil.rmtree(stage.session.path(located, "answers"))  # as of rows from before the lookup
    creation.create(stage.session, located)
    lost = reconciliation.reconcile(stage.session, located, HOUR)
    assert lost.verdict == "DIFFERENT" and "5 rows have no recorded answer" in lost.cause
    assert PLACES.asked == {"a": 2, "b": 3, "c": 2}, "a reconciliation asks for nothing"
    PLACES.opinion = 5
    stage.backfill("located", HOUR)
    assert PLACES.asked == {"a": 3, "b": 4, "c": 3}
    assert set(opinions(stage, "located", 1, 6).values()) == {5, None}
    assert_stream_equals_batch(stage, "located", HOUR)
    count = "SELECT count(*) FROM located__answers"
    assert query.run(stage.session, count).rows == [(5,)]
    savepoints.create(stage.session, "now")
    saved = replace(settings, root=layout.savepoint_root(settings, "now"))
    assert query.run(Lakehouse(saved, stage.session.catalog), count).rows == [(5,)]


def test_a_failed_lookup_is_quarantined_until_it_is_asked_again(stage):
    checked = stage.session.catalog.table("checked")
    PLACES.failing, PLACES.hanging = {"a"}, {"d"}
    stage.feed("visits", [visit(11, "a", 3801), visit(12, "b", 3802), visit(13, "d", 3803)])
    stage.advance("visits", visit(99, None, 7300))
    hour = Range(HOUR.end, HOUR.end + timedelta(hours=1))
    stage.run("checked", abort_at="quarantine")
    assert PLACES.asked["d"] == 2  # each failure with its one retry
    assert opinions(stage, "checked", 11, 13) == {12: 1}
    put_aside = {
        json.loads(row["value"])["id"]: row["reason"]
        for row in stage.rows("checked", "quarantine")
        .where("_partition = '2026-01-01-01'")
        .collect()
    }
    assert put_aside == {
        11: "lookup strict: HTTPError: HTTP Error 503: Service Unavailable",
        13: "lookup strict: no answer within 1 s",
    }
    lines = stage.session.commit_log(checked).by_stream()
    first_hour = stage.rows("checked", "quarantine").where("_partition = '2026-01-01-00'").count()
    assert sum(line.quarantined for line in lines) == len(put_aside) + first_hour
    PLACES.say()
    stage.feed("visits", [visit(14, "b", 3804)])  # late: the batch run that merges it asks
    stage.run("checked")
    assert not PLACES.asked
    PLACES.opinion = 2
    stage.update("checked")
    assert opinions(stage, "checked", 11, 14) == {12: 1, 14: 2}
    compute.backfill(stage.session, checked, hour, "failed")
    assert opinions(stage, "checked", 11, 14) == {11: 2, 12: 1, 13: 2, 14: 2}
    assert PLACES.asked == {"a": 1, "b": 1, "d": 1}
    assert_stream_equals_batch(stage, "checked", hour)


def test_a_table_waits_for_its_service_and_an_answer_is_kept_for_a_while(stage):
    stage.feed("visits", [visit(21, "x", 7401), visit(22, "y", 7402)])
    PLACES.failing = {"x"}
    job = queries.start(stage.session, stage.session.catalog.table("loose"))
    try:
        until(lambda: "lookup=lenient: 1 of 1 keys have no answer" in job.trouble)
        assert job.isActive and job.in_flight is None and stage.rows("loose").isEmpty()
        PLACES.failing = set()
        job.processAllAvailable()
        assert job.trouble == "" and PLACES.asked["y"] == 1, "what was answered is not asked again"
        asked = PLACES.asked.copy()
        stage.feed("visits", [visit(23, "x", 7403)])
        job.processAllAvailable()
        assert PLACES.asked == asked and job.run.service.counts.cached == 1
        PLACES.hanging = {"z"}
        stage.feed("visits", [visit(24, "z", 7404)])
        until(lambda: job.run.service.counts.waiting == 1)
    finally:
        job.stop()  # which a service that hangs does not hold up
    assert not job.isActive
    with pytest.raises(StepFailed, match=r"lookup=lenient: 1 of 1 keys .*no answer within 1 s"):
        stage.run("loose")  # up to the present: it does not wait
    answered = stage.rows("loose").where("id BETWEEN 21 AND 24").collect()
    assert {row["id"]: row["lenient"]["country"] for row in answered} == {
        21: "country x",
        22: "country y",
        23: "country x",
    }


def test_prepared_steps_have_the_recorded_answers(stage, spark, tmp_path, monkeypatch):
    monkeypatch.setattr(prepared_steps, "ORDINARY_FIRST", 0)
    apart = Stage(spark, tmp_path, HERE)
    table = apart.session.catalog.table("checked")
    queries.prepare(apart.session, list(apart.session.catalog))
    PLACES.failing, PLACES.unknown = {"failing"}, {"c"}
    job = queries.start(apart.session, table)
    try:
        for step in range(0, 60, 10):
            addresses = ("a", "c", None, "failing" if step % 20 else "b")
            apart.feed("visits", [visit(step + n, each) for n, each in enumerate(addresses, 1)])
            job.processAllAvailable()
        assert job.run.prepared.ways == {"questions": "", "rows": "", "counts visits": ""}
    finally:
        job.stop()
    answered = {1: 1, 2: None, 3: None, 4: 1} | {11: 1, 12: None, 13: None}
    assert opinions(apart, "checked", 1, 19) == answered, "the lookup of 14 has failed"
    apart.advance("visits", visit(99, None, 3700))
    apart.run("checked")
    assert_stream_equals_batch(apart, "checked", HOUR)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("id BIGINT", "name columns of the table's input, and address is none"),
        ("address STRING, place STRING", "there is one; rename the function"),
        ("address STRUCT<street: STRING>", "plain values, and address is nested"),
    ],
)
def test_what_it_is_asked_with_are_plain_columns_of_the_input(spark, columns, said):
    with pytest.raises(DeclarationError, match=said):
        lookups.key_of(located, place, spark.createDataFrame([], columns))
