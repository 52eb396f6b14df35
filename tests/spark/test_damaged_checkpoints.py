"""Files of a checkpoint that are there and cannot be read, as a power cut leaves them: each is as if it were gone."""

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import ingest_table, kafka, keyed_table, row_table, tumbling, window_table
from lakehouse.storage.disk import files, layout
from lakehouse.storage.position import checkpoint_content, checkpoint_files
from lakehouse.testing import Stage, assert_stream_equals_batch
from streaming_jobs.queries import SupervisedQuery
from support.sensors_job import awaited

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("hours", "means")
FORMATS = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

clicks_topic = kafka(
    "clicks", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def clicks(clicks_topic: DataFrame) -> DataFrame:
    return clicks_topic


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"])
def hours(clicks: DataFrame) -> DataFrame:
    """Kept in Spark's state."""
    return clicks.groupBy("window", "user").agg(F.sum("value").alias("value"))


@keyed_table(layer="gold", keys=["user"])
def means(clicks: DataFrame) -> DataFrame:
    """Kept in Spark's state, too."""
    last = F.max_by("value", F.struct("at", "value")).alias("last")
    return clicks.groupBy("user").agg(F.count("*").alias("n"), last)


@row_table(layer="silver")
def kept(clicks: DataFrame) -> DataFrame:
    return clicks


DAMAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "garbage": lambda content: b"\x07garbage" * 40,
    "zeros": lambda content: bytes(len(content)),
    "truncated": lambda content: content[: len(content) // 2],
    "cut short": lambda content: content[:-3],
}


def feed(stage: Stage, minute: int) -> None:
    seconds = range(60 * minute, 60 * minute + 120, 7)
    rows = [(s, user, s % 5) for s in seconds for user in ("a", "b")]
    stage.feed(
        "clicks",
        [
            {"user": user, "at": (START + timedelta(seconds=s)).isoformat(), "value": value}
            for s, user, value in rows
        ],
    )


def newest(stage: Stage, name: str) -> Path:
    folder = stage.session.settings.root / "_checkpoints" / name
    return folder / max((path.name for path in folder.iterdir()), key=int)


def parts(checkpoint: Path) -> dict[str, Path]:
    """One file of each kind that Spark reads as the query starts."""
    last = {
        name: checkpoint / name / str(checkpoint_files.numbers(checkpoint / name)[-1])
        for name in ("offsets", "commits")
    }
    state = checkpoint / "state" / "0"
    change = max((state / "0").glob("*.changelog"), key=lambda p: int(p.name.partition(".")[0]))
    return {
        "metadata": checkpoint / "metadata",
        "offsets": last["offsets"],
        "commits": last["commits"],
        "operator": state / "_metadata" / "metadata",
        "schema": state / "0" / "_metadata" / "schema",
        "change": change,
    }


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.turn(1)
@pytest.mark.timeout(600)
def test_a_file_that_cannot_be_read_counts_as_gone(stage_of, tmp_path, capsys):
    stage = stage_of(HERE)
    feed(stage, 0)
    stage.run(*NAMES)
    # with a snapshot, as Spark writes one after ten changes
    stage.session.spark.conf.set(FORMATS, "false")
    feed(stage, 2)
    stage.run(*NAMES)
    stage.session.spark.conf.set(FORMATS, "true")
    feed(stage, 4)
    stage.run(*NAMES)
    whole = newest(stage, "means")
    (snapshot,) = (whole / "state" / "0" / "0").glob("*.zip")
    rows = sorted((whole / "state" / "0" / "0" / "SSTs").iterdir())
    kinds = parts(whole) | {"snapshot": snapshot, "rows": rows[0]}
    for kind, path in kinds.items():
        for damage, damaged in DAMAGES.items():
            copy = Path(shutil.copytree(whole, tmp_path / f"{kind} {damage}"))
            checkpoint_content.set_unreadable_aside(copy)
            assert not list(copy.rglob("*.unreadable-*")), "what is sound stays"
            file = copy / path.relative_to(whole)
            file.write_bytes(damaged(file.read_bytes()))
            checkpoint_content.set_unreadable_aside(copy)
            aside = copy / snapshot.relative_to(whole) if kind == "rows" else file
            assert files.moved_aside(aside) and not aside.exists(), (kind, damage)
    capsys.readouterr()
    rounds = zip(
        parts(whole), ("truncated", "empty", "garbage", "zeros", "empty", "truncated"), strict=True
    )
    for turn, (kind, damage) in enumerate(rounds):
        name = NAMES[turn % 2]
        file = parts(newest(stage, name))[kind]
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
        if turn % 2 == 0:
            continue
        feed(stage, 6 + 2 * turn)
        stage.run(*NAMES)
        told = capsys.readouterr().err
        assert told.count("it must hold what Spark wrote, and cannot be read") == 2, told
    stage.advance(
        "clicks", {"user": "end", "at": (START + timedelta(hours=9)).isoformat(), "value": 0}
    )
    stage.run(*NAMES)
    for name in NAMES:
        found = assert_stream_equals_batch(stage, name)
        assert found.rows_in_table and not found.rows_by_batch_runs, name


@pytest.mark.slow
@pytest.mark.parallel
def test_a_query_that_cannot_be_started_is_paused_alone(stage_of, capsys):
    """One whose checkpoint cannot be made, after its restarts; one without its handover at once."""
    stage = stage_of(HERE)
    settings = replace(stage.session.settings, query_restarts=1)
    session = replace(stage.session, settings=settings)
    fails, refused, goes_on = (
        SupervisedQuery(session, session.catalog.table(name)) for name in ("hours", "kept", "means")
    )
    (settings.root / "_checkpoints").mkdir(exist_ok=True)
    (settings.root / "_checkpoints" / "hours").write_text("no folder")
    handover = layout.note(settings, refused.table, "handover.json")
    handover.parent.mkdir(exist_ok=True)
    handover.write_text('{"frontier": ')
    for query in (fails, refused, goes_on):
        query.start()
    assert fails.status.state == "restarting" and refused.paused
    assert str(handover) in refused.status.error
    awaited(lambda: fails.tend() or goes_on.tend() or fails.paused, "the query is paused")
    assert goes_on.active
    goes_on.stop()
    told = capsys.readouterr().err
    assert "table=hours: paused: its query failed 2 times" in told
    assert "_checkpoints/hours" in fails.status.error
    assert "; remove the cause, then `lakehouse stream restart" in fails.status.error
