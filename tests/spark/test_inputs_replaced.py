"""An input that is removed, made again, or put back under those that read it: no row is lost or doubled without a word."""

import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, row_table, tumbling, versioned_table, window_table
from lakehouse.errors import CommitError
from lakehouse.storage.position import checkpoints
from lakehouse.stream import positions, queries
from lakehouse.stream.advance import StepFailed
from lakehouse.stream.positions import Position
from lakehouse.testing import Stage, assert_stream_equals_batch
from lakehouse.transform import creation
from support import starts

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

drop_topic = kafka(
    "drops", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def drops(drop_topic: DataFrame) -> DataFrame:
    return drop_topic


@row_table(layer="silver")
def positive(drops: DataFrame) -> DataFrame:
    return drops.where("value > 0")


@row_table(layer="gold")
def large(positive: DataFrame) -> DataFrame:
    return positive.where("value > 1")


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def briefly(positive: DataFrame) -> DataFrame:
    return positive.groupBy("window", "user").agg(F.sum("value").alias("value"))


@versioned_table(layer="silver", keys=["user"])
def latest(drops: DataFrame) -> DataFrame:
    return drops.select("user", "at", "value", "_arrival")


def drop(second: float, value: int = 2) -> dict:
    return {
        "user": f"user-{second % 3}",
        "at": (START + timedelta(seconds=second)).isoformat(),
        "value": value,
    }


def feed(stage: Stage, first: int, commits: int) -> None:
    for second in range(first, first + commits):
        stage.feed("drops", [drop(second)])


def remove(stage: Stage, name: str) -> None:
    shutil.rmtree(stage.session.path(stage.session.catalog.table(name)))


def make_recreated(stage: Stage, name: str) -> None:
    remove(stage, name)
    creation.create(stage.session, stage.session.catalog.table(name))


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def written(path: Path, commits: int) -> Path:
    for number in range(commits):
        write_deltalake(path, pa.table({"n": [number]}), mode="append")
    return path


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_what_lies_behind_the_end_of_a_log_is_not_waited_for(tmp_path, commits):
    path = written(tmp_path / "input", 4)
    assert positions.following(path, Position(4), 10).files == ()
    shutil.rmtree(path)
    told = f"log ends with {commits - 1}" if commits else "it is not there any more"
    with pytest.raises(
        CommitError, match=f"input=input, version=3: it was read up to there, and .*{told}"
    ):
        positions.following(written(path, commits), Position(4), 10)


@pytest.mark.parametrize("commits", [0, 2, 4, 6])
def test_a_table_of_the_same_name_is_another_one(tmp_path, commits):
    path = written(tmp_path / "input", 4)
    read = positions.Input(path)
    written(path, 1)
    read.check()
    shutil.copytree(path, tmp_path / "copy")
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    read.check()
    shutil.rmtree(path)
    written(path, commits)
    for _ in range(2):
        told = f"the table has read the one of id {read.identity}" if commits else "it is not there"
        with pytest.raises(CommitError, match=f"input=input.*{told}"):
            read.check()


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parallel
def test_an_input_that_is_gone_or_another_one_is_named_at_the_start(stage_of):
    stage = stage_of(HERE)
    feed(stage, 0, 3)
    stage.run("positive", "latest")
    shutil.copytree(stage.session.settings.root / "bronze", stage.session.settings.root / "copy")
    remove(stage, "drops")
    with pytest.raises(
        CommitError,
        match=r"table=positive, input=drops: it is not there, and the table has read it; put",
    ):
        stage.run("positive")
    creation.create(stage.session, stage.session.catalog.table("drops"))
    for rows in (1, 5):  # fewer versions than were read, and more
        feed(stage, 100, rows)
        with pytest.raises(
            CommitError, match=r"table=positive, input=drops, id=.*and this is another of that name"
        ):
            stage.run("positive")
    assert stage.rows("positive").count() == 3
    stage.run("latest")  # reads all of its record in any case
    assert (
        checkpoints.standing(
            stage.session.settings, stage.session.catalog.table("latest")
        ).generation
        == 2
    )
    stage.advance("drops", drop(7200))
    stage.run("latest")
    assert_stream_equals_batch(stage, "latest")
    shutil.rmtree(stage.session.settings.root / "bronze")
    shutil.move(stage.session.settings.root / "copy", stage.session.settings.root / "bronze")
    stage.run("positive")


@pytest.mark.parametrize("commits", [None, 1, 6])
def test_an_input_that_is_gone_or_another_one_ends_the_query_that_reads_it(stage_of, commits):
    stage = stage_of(HERE)
    feed(stage, 0, 3)
    query = queries.start(stage.session, stage.session.catalog.table("positive"))
    try:
        query.processAllAvailable()
        beside = stage.session.settings.root / "beside"
        # at once, as somebody would
        stage.session.path(stage.session.catalog.table("drops")).rename(beside)
        if commits:
            creation.create(stage.session, stage.session.catalog.table("drops"))
            feed(stage, 100, commits)
        until(lambda: not query.isActive)
        with pytest.raises(StepFailed, match="CommitError: input=drops"):
            query.awaitTermination()
    finally:
        query.stop()
    assert stage.rows("positive").count() == 3


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parallel
def test_a_table_that_is_removed_with_its_readers_is_filled_again_with_them(stage_of):
    stage = stage_of(HERE)
    names = ("positive", "large", "briefly", "latest")
    feed(stage, 0, 3)
    stage.run(*names)
    made = stage.rows("large").count()
    make_recreated(stage, "positive")
    with pytest.raises(
        CommitError, match=r"version=0: its log ends with .*remove those of large, briefly as well"
    ):
        stage.run("positive")
    make_recreated(stage, "large")
    make_recreated(stage, "briefly")
    stage.run("positive", "large", "briefly")
    assert stage.rows("large").count() == made

    for name in names:  # of `briefly` no window had closed: nothing but the commit log knows of it
        make_recreated(stage, name)
    make_recreated(stage, "drops")
    drops = stage.session.catalog.table("drops")
    starts.fit(stage.session, drops)
    assert next(stage.session.commit_log(drops).by_stream(), None) is None, (
        "its topic is read from the beginning"
    )
    feed(stage, 0, 3)
    stage.advance("drops", drop(7200))
    stage.run(*names)
    for name in names:
        assert_stream_equals_batch(stage, name)
