"""Checkpoints that are gone, torn, older or newer than their table: no row is lost or doubled, and it is said."""

import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import (
    around,
    expect,
    ingest_table,
    kafka,
    keyed_table,
    row_table,
    session,
    tumbling,
    versioned_table,
    window_table,
)
from lakehouse.errors import CommitError
from lakehouse.storage.disk import layout
from lakehouse.storage.log.commit_log import CommitLog
from lakehouse.storage.position import checkpoints
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed
from lakehouse.testing import Aborted, Stage, assert_stream_equals_batch
from support import starts

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)

visit_topic = kafka(
    "visits", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def seen(visit_topic: DataFrame) -> DataFrame:
    return visit_topic


@row_table(layer="silver", expectations=[expect.column_values_to_be_between("value", max_value=90)])
def plain(seen: DataFrame) -> DataFrame:
    return seen.where("value > 0")


@window_table(layer="gold", window=tumbling("10 seconds"), keys=["user"])
def short(seen: DataFrame) -> DataFrame:
    """Computed range by range, as each closes."""
    return seen.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"])
def long(seen: DataFrame) -> DataFrame:
    """Kept in Spark's state."""
    return seen.groupBy("window", "user").agg(F.sum("value").alias("value"))


@window_table(layer="gold", window=session("2 minutes"), keys=["user"])
def sessions(seen: DataFrame) -> DataFrame:
    return seen.groupBy("window", "user").agg(
        F.count("*").alias("n"), F.sum("value").alias("value")
    )


@row_table(layer="silver", context=around(after="30 seconds"))
def near(seen: DataFrame) -> DataFrame:
    others = seen.where("user = 'b'").select(
        F.col("at").alias("then"), F.col("value").alias("other")
    )
    return seen.where("user = 'a'").join(
        others, F.expr("then BETWEEN at AND at + interval 30 seconds")
    )


@keyed_table(layer="gold", keys=["user"])
def sums(seen: DataFrame) -> DataFrame:
    """Merged with what the table holds."""
    return seen.groupBy("user").agg(F.count("*").alias("n"), F.sum("value").alias("value"))


@keyed_table(layer="gold", keys=["user"])
def totals(seen: DataFrame) -> DataFrame:
    """Kept in Spark's state."""
    last = F.max_by("value", F.struct("at", "value")).alias("last")
    return seen.groupBy("user").agg(F.count("*").alias("n"), F.sum("value").alias("value"), last)


@versioned_table(layer="silver", keys=["user"])
def latest(seen: DataFrame) -> DataFrame:
    return seen.select("user", "at", "value", "_arrival")


ALL = ("plain", "short", "long", "sessions", "near", "sums", "totals", "latest")
OF_SPARK = ("long", "sessions", "totals")  # the others keep their position in their own commits
GONE = (
    ("", "", ""),
    ("state", "offsets", "commits"),
    ("commits", "state", "state"),
    ("offsets", "metadata", "offsets"),
)


def at(second: float, user: str = "a", value: int = 1) -> dict:
    return {"user": user, "at": (START + timedelta(seconds=second)).isoformat(), "value": value}


def feed(stage: Stage, minute: int) -> None:
    """Two minutes of rows in three commits; some of them late, one of them too large."""
    for third in range(3):
        seconds = range(60 * minute + 40 * third, 60 * minute + 40 * (third + 1), 9)
        rows = [at(s, "a", s % 7) for s in seconds] + [at(s + 1, "b", s % 5 + 1) for s in seconds]
        stage.feed(
            "seen",
            [*rows, at(60 * minute - 700, "late", 5), at(60 * minute + 40 * third, "large", 99)],
        )


def checkpoint(stage: Stage, name: str) -> Path:
    """The newest folder of the table's query."""
    folder = stage.session.settings.root / "_checkpoints" / name
    return folder / str(max(int(p.name) for p in folder.iterdir()))


def gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def reconciled(stage: Stage, *names: str) -> None:
    """All rows once, in table and quarantine."""
    stage.advance("seen", at(36_000, "end", 0))
    stage.run(*names)
    for name in names:
        found = assert_stream_equals_batch(stage, name)
        assert found.rows_in_table and not found.rows_by_batch_runs, (name, found)
    if "plain" in names:
        large = (
            stage.rows("plain", "quarantine")
            .where("_arrival.offset IS NOT NULL")
            .select("_arrival.offset")
        )
        fed = stage.rows("seen").where("value = 99").count()
        assert large.count() == large.distinct().count() == fed


def counted_once(stage: Stage, *names: str) -> None:
    """The commit log counts each row of the input once, however often it was read."""
    arrived = stage.rows("seen").count()
    for name in names:
        lines = list(
            CommitLog(stage.session.settings, stage.session.catalog.table(name)).by_stream()
        )
        assert sum(c.arrived for c in lines) == arrived, name


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_a_checkpoint_that_is_gone_or_lacks_a_part_loses_and_doubles_nothing(stage_of, capsys):
    stage = stage_of(HERE)
    feed(stage, 0)
    stage.run(*ALL)
    for round, parts in enumerate(GONE, 1):
        feed(stage, 4 * round)
        stage.run(*ALL)  # once more, so that a batch whose number is used again would be missed
        capsys.readouterr()
        for name, part in zip(OF_SPARK, parts, strict=True):
            gone(checkpoint(stage, name) / part if part else checkpoint(stage, name).parent)
        feed(stage, 4 * round + 2)
        stage.run(*ALL)
        told = capsys.readouterr().err
        for name in OF_SPARK:
            assert (
                f"table={name}, generation={round + 1}: the checkpoint did not fit the table"
                in told
            ), (round, name, told)
    assert {
        folder.name for folder in (stage.session.settings.root / "_checkpoints").iterdir()
    } == set(OF_SPARK)
    reconciled(stage, *ALL)
    counted_once(stage, "plain", "short", "long", "sessions", "near")


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_an_older_copy_of_a_checkpoint_and_a_crash_before_it_was_removed(stage_of, tmp_path):
    stage = stage_of(HERE)
    everything = stage.session.settings.root / "_checkpoints"
    feed(stage, 0)
    stage.run(*ALL)
    shutil.copytree(everything, tmp_path / "older")
    feed(stage, 4)
    stage.run(*ALL)
    shutil.rmtree(everything)
    shutil.move(tmp_path / "older", everything)
    feed(stage, 8)
    stage.run(*ALL)

    def crash(point: str) -> None:
        if point == "rows":
            raise Aborted(point)

    feed(stage, 16)
    for name in ALL:
        with pytest.raises((StreamingQueryException, StepFailed), match="Aborted"):
            queries.start(
                stage.session, stage.session.catalog.table(name), available_now=True, reached=crash
            ).awaitTermination()
    # what the last micro-batch quarantined is not written, and no commit log knows of its rows
    shutil.rmtree(everything)
    feed(stage, 18)
    stage.run(*ALL)
    reconciled(stage, *ALL)


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.parallel
def test_a_table_whose_query_was_sparks_goes_on_by_steps(stage_of, capsys):
    """As an earlier version left it: a checkpoint, and offsets as Spark notes them."""
    stage = stage_of(HERE)
    feed(stage, 0)
    names = "plain", "short", "sums"
    stage.run(*names)
    for name in names:
        offsets = stage.session.settings.root / "_checkpoints" / name / "1" / "offsets"
        offsets.mkdir(parents=True)
        (offsets / "0").write_text("v1")
    feed(stage, 4)
    stage.run(*names)
    assert (
        "table=plain: it keeps its position in its own commits now; its checkpoint was removed"
        in capsys.readouterr().err
    )
    assert not list((stage.session.settings.root / "_checkpoints").iterdir())
    reconciled(stage, *names)
    counted_once(stage, *names)


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_a_table_that_was_put_back_is_filled_from_there_on(stage_of, tmp_path):
    stage = stage_of(HERE)
    paths = {name: stage.session.path(stage.session.catalog.table(name)) for name in (*ALL, "seen")}
    feed(stage, 0)
    stage.run(*ALL)
    before = {name: DeltaTable(str(path)).version() for name, path in paths.items()}
    feed(stage, 4)
    stage.run(*ALL)
    for name in ALL:
        DeltaTable(str(paths[name])).restore(before[name])
    feed(stage, 8)
    stage.run(*ALL)  # by RESTORE, which takes no transaction back

    copied = {name: shutil.copytree(path, tmp_path / name) for name, path in paths.items()}
    feed(stage, 12)
    stage.run(*ALL)
    for name in ALL:
        gone(paths[name])
        shutil.copytree(copied[name], paths[name])
    feed(stage, 16)
    stage.run(*ALL)  # by an older copy of its folder

    for name in ("plain", "long"):
        gone(paths[name])
    queries.prepare(stage.session, list(stage.session.catalog))
    stage.run(*ALL)  # removed, and made again
    reconciled(stage, *ALL)

    seen = stage.session.catalog.table("seen")
    last = DeltaTable(str(paths["seen"])).version()
    DeltaTable(str(paths["seen"])).restore(last - 1)
    with pytest.raises(
        CommitError,
        match=f"table=seen, version={last - 1}: .*long, .*twice. Put back its version {last}",
    ):
        starts.fit(stage.session, seen)
    gone(paths["seen"])
    shutil.copytree(copied["seen"], paths["seen"])
    with pytest.raises(
        CommitError,
        match=r"table=plain, input=seen, version=\d+: .*the input is older than what was read",
    ):
        stage.run("plain")


@pytest.mark.slow
@pytest.mark.parallel
def test_keyed_tables_begin_recreated_when_their_record_was_put_back(stage_of, capsys):
    """Else they would read the rows that come again beside those that they have."""
    stage, names = stage_of(HERE), ("sums", "totals", "latest")
    seen = stage.session.catalog.table("seen")
    feed(stage, 0)
    stage.run(*names)
    before = DeltaTable(str(stage.session.path(seen))).version()
    again = [at(100, "a", 2), at(101, "b", 3), at(102, "c", 4)]
    stage.feed("seen", again)
    stage.run(*names)
    DeltaTable(str(stage.session.path(seen))).restore(before)
    starts.fit(stage.session, seen)
    stage.feed("seen", again)
    capsys.readouterr()
    stage.run(*names)
    told = capsys.readouterr().err
    for name in names:
        assert (
            f"table={name}, generation=2" in told and "its input seen was put back since" in told
        ), told
    reconciled(stage, *names)
    for name in names:  # as often as one likes, and not again
        assert (
            checkpoints.standing(
                stage.session.settings, stage.session.catalog.table(name)
            ).generation
            == 2
        )


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_without_the_file_of_generations_nothing_is_written_twice(stage_of, capsys):
    """It says which generation wrote a micro-batch that is run again, and which windows were in the table before."""
    stage, names = stage_of(HERE), ("plain", "long", "totals")
    settings, catalog = stage.session.settings, stage.session.catalog

    def crash_at(at: str, name: str) -> None:
        def crash(point: str) -> None:
            if point == at:
                raise Aborted(point)

        with pytest.raises((StreamingQueryException, StepFailed), match="Aborted"):
            queries.start(
                stage.session, catalog.table(name), available_now=True, reached=crash
            ).awaitTermination()

    feed(stage, 0)
    stage.run(*names)
    feed(stage, 4)
    stage.run(*names)
    feed(stage, 8)
    crash_at("rows", "plain")  # they are in the table; the commit log does not know of it
    plain = catalog.table("plain")
    checkpoints.begin(
        settings, plain, checkpoints.standing(settings, plain).number, "a test", continues=True
    )
    for name in ("long", "totals"):
        gone(checkpoint(stage, name).parent)
        crash_at("begin", name)  # the new generation has begun, and written nothing
    for name in names:
        layout.note(settings, catalog.table(name), "generations.jsonl").unlink()
    capsys.readouterr()
    feed(stage, 12)
    stage.run(*names)
    told = capsys.readouterr().err
    for name in names:
        assert (
            f"table={name}, generation=3: " in told
            and f"{name}.generations.jsonl has lost it" in told
        ), told
    reconciled(stage, *names)
