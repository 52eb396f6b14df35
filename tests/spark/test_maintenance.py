"""Maintenance beside streams: the rows stay, a reader that lags finds what it has still to read, the past goes."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from batch_jobs import commands, maintain
from lakehouse.errors import CommitError
from lakehouse.examples.sensors import tables as sensors
from lakehouse.maintenance import retention
from lakehouse.maintenance.retention import Place
from lakehouse.ranges import parse_range
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.delta import (
    committer,
    delta_log,
    delta_writer,
    housekeeping,
    log_state,
    table_creation,
)
from lakehouse.storage.delta.digest import digest
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.versions import read_holds
from lakehouse.stream import queries
from lakehouse.stream.advance import StepFailed
from lakehouse.testing import Stage, assert_stream_equals_batch
from support.small_log import Log, aged

TABLES = ("sensor_readings", "valid_readings", "sensor_averages")


@pytest.fixture
def stage(spark, tmp_path) -> Stage:
    """A table whose reader lags: `sensor_averages` has read one hour of three."""
    stage = Stage(spark, tmp_path, sensors)
    # after the events, and the hours of arrival are over
    stage._now = stage._now.replace(year=2026, day=2)
    for hour in range(3):
        for minute in (10, 40):
            stage.feed("sensor_readings", [_reading(hour, minute, n) for n in range(6)])
            stage.run(*TABLES[1 : 2 if hour else 3], by_spark=True)
        if not hour:
            checkpointed(stage)
    return stage


@pytest.mark.slow
@pytest.mark.parallel
def test_a_table_is_kept_up_beside_its_streams(stage):
    settings, catalog = stage.session.settings, stage.session.catalog
    valid, before = stage.session.path(catalog.table("valid_readings")), digests(stage)
    for commit in (valid / "_delta_log").glob("*.json"):
        # a summary of each commit, as Delta's own writers leave it
        commit.with_suffix(".crc").touch()
    files = everything(settings.root)
    hours = files_of(valid)
    assert (
        sorted(hours) == ["2026-01-01-00", "2026-01-01-01", "2026-01-01-02"]
        and min(hours.values()) > 1
    )
    planned = {u.table: u for u in maintain.planned(Lakehouse(settings, catalog))}
    assert planned["valid_readings"].partitions == ("2026-01-01-00", "2026-01-01-01"), (
        "the third hour is open"
    )
    assert planned["sensor_readings"].partitions == ("2026-01-02-00",)
    assert everything(settings.root) == files, "a plan changes nothing"

    summaries = sorted((valid / "_delta_log").glob("*.crc"))
    list(maintain.run(Lakehouse(settings, catalog)))
    left, last = (
        sorted((valid / "_delta_log").glob("*.crc")),
        max((valid / "_delta_log").glob("*.checkpoint.parquet")),
    )
    assert left == [p for p in summaries if p.stem >= last.name[:20]] and 0 < len(left) < len(
        summaries
    )
    assert (
        files_of(valid) == hours | {"2026-01-01-00": 1, "2026-01-01-01": 1}
        and digests(stage) == before
    )
    assert not any(u.partitions for u in maintain.planned(Lakehouse(settings, catalog))), (
        "nothing is left to do"
    )

    aged(settings.root, 3)
    # a query that starts again reads its last batch once more: what it read before that may go
    for minute in (
        10,
        40,
    ):
        stage.feed("sensor_readings", [_reading(3, minute, n) for n in range(6)])
        stage.run("valid_readings")
    checkpointed(stage)
    aged(settings.root, 2)
    before = digests(stage)
    done = {u.table: u for u in maintain.run(Lakehouse(settings, catalog))}
    held, free = done["valid_readings"], done["sensor_readings"]
    assert (held.held_by, held.oldest, held.obsolete) == ("sensor_averages", 2, 0)
    assert free.oldest > 2 and free.commits == free.oldest and free.obsolete >= 6
    assert digests(stage) == before
    # its commits were written long ago, and their files have been compacted since
    stage.run("sensor_averages")

    stage.advance("sensor_readings", _reading(5, 0, 0))
    stage.run("valid_readings", "sensor_averages")
    (done,) = (
        u
        for u in maintain.run(Lakehouse(settings, catalog), "valid_readings")
        if u.table == "valid_readings"
    )
    assert done.oldest > 1 and done.obsolete >= 4
    for name in TABLES[1:]:
        assert assert_stream_equals_batch(stage, name).rows_in_table >= 48

    stage.run("sensor_trends")  # begins when the first commits of its input have gone
    stage.backfill("sensor_trends", parse_range("2026-01-01T00:00", "2026-01-01T04:00"))
    assert_stream_equals_batch(stage, "sensor_trends")


def test_a_run_that_was_killed_keeps_nothing(tmp_path):
    log = Log(tmp_path)
    last = log.append(4)
    code = (
        "from lakehouse.settings import from_environment\nfrom lakehouse.storage.versions.read_holds import under_way\n"
        "with under_way(from_environment()): print(1); input()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | to_environment(log.settings), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert run.stdout.readline() == b"1\n"
        log.append(4)
        assert last - 1 <= log.maintained()[0] <= last and read_holds.began(log.settings)
    finally:
        run.kill()
        run.communicate()
    assert log.maintained() == (last + 3, "") and read_holds.began(log.settings) is None
    assert not any((tmp_path / "_locks" / "runs").iterdir())


@pytest.mark.slow
@pytest.mark.parallel
def test_a_batch_that_crashed_finds_its_commit_when_the_past_has_gone(spark, tmp_path):
    stage = Stage(spark, tmp_path, sensors)
    settings, catalog = stage.session.settings, stage.session.catalog
    table, path = (
        catalog.table("valid_readings"),
        stage.session.path(catalog.table("valid_readings")),
    )
    for minute in (10, 40):
        stage.feed("sensor_readings", [_reading(0, minute, n) for n in range(3)])
        query = queries.start(
            stage.session,
            table,
            available_now=True,
            reached=_crash_after_rows if minute == 40 else _go_on,
        )
        with (
            pytest.raises(StepFailed, match="ZeroDivisionError") if minute == 40 else nullcontext()
        ):
            query.awaitTermination()
    for _ in range(3):
        write_deltalake(
            str(path), DeltaTable(str(path)).to_pyarrow_table().slice(0, 0), mode="append"
        )
    checkpointed(stage)
    aged(settings.root, 3)
    (done, _) = maintain.run(Lakehouse(settings, catalog), "valid_readings")
    assert (done.held_by, done.commits) == ("its own query", 0), "it will look for its commit"
    stage.feed("sensor_readings", [_reading(1, 0, 0)])
    stage.run("valid_readings")
    assert stage.rows("valid_readings").count() == 7
    checkpointed(stage)
    aged(settings.root, 3)
    (done, _) = maintain.run(Lakehouse(settings, catalog), "valid_readings")
    assert done.commits == done.oldest > 3, "once it is through, they go"


def test_compacting_and_appending_do_not_disturb_each_other(spark, tmp_path):
    path = tmp_path / "rows"
    rows = spark.range(20).selectExpr("id", "'p' AS _partition").repartition(3)
    rows.limit(0).write.format("delta").partitionBy("_partition").save(str(path))
    for batch in range(2):
        delta_writer.append(rows, path, "rows:stream:1", batch, {})
    place = Place("rows", path, lambda _: True, {})
    delta_writer.append(
        rows,
        path,
        "rows:stream:1",
        2,
        {"inputs": Meanwhile(lambda: retention.maintain(Settings(), place))},
    )
    assert delta_log.committed(path, "rows:stream:1") == 2 and files_of(path) == {"p": 4}

    early = log_state.newest(path)
    delta_writer.append(rows, path, "rows:stream:1", 3, {})
    housekeeping._compact(early, ("p",))
    assert (
        files_of(path) == {"p": 4} and spark.read.format("delta").load(str(path)).count() == 4 * 20
    )


class Meanwhile:
    """Written down after the files of an append and before its commit; meanwhile something else is done."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __str__(self) -> str:
        self.act()
        return ""


def test_a_writer_goes_on_when_what_it_first_saw_of_the_log_has_gone(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(
        committer, "_OUTWEIGHED", 0
    )  # four commits are less than an empty checkpoint
    path, rows = tmp_path / "rows", spark.range(20).selectExpr("id", "'p' AS _partition")
    table_creation.create(
        path, rows.schema, True, "id", table_creation.PLAIN | {"delta.checkpointInterval": "4"}
    )
    place = Place("rows", path, lambda _: False, {})
    for batch in range(14):
        delta_writer.append(rows, path, "rows:stream:1", batch, {})
        if batch == 9:
            assert retention.maintain(Settings(root=tmp_path, versions=1), place).oldest == 8
    assert max((path / "_delta_log").glob("*.checkpoint.parquet")).name.startswith(f"{12:020}")
    assert (
        delta_log.committed(path, "rows:stream:1") == 13
        and DeltaTable(str(path)).count() == 14 * 20
    )


def test_what_another_run_rewrites_meanwhile_is_left_to_it(spark, tmp_path):
    path = tmp_path / "rows"
    rows = spark.range(20).selectExpr("id", "'p' AS _partition").repartition(3)
    rows.write.format("delta").partitionBy("_partition").save(str(path))
    for rewrite in (
        lambda: delta_writer.replace(rows, path, ["p"], {"run": "1"}),
        lambda: housekeeping.compact(path, ("p",)),
    ):
        early = log_state.newest(path)
        rewrite()
        with pytest.raises(CommitError, match="another run rewrote what was being compacted"):
            housekeeping._compact(early, ("p",))
    assert spark.read.format("delta").load(str(path)).count() == 20


def test_a_plan_on_the_command_line(filled, tmp_path):
    root = shutil.copytree(filled, tmp_path / "root")
    environment = {"LAKEHOUSE_ROOT": str(root), "LAKEHOUSE_TABLES": sensors.__name__}
    before = everything(root)
    result = CliRunner().invoke(commands.app, ["maintain", "--dry-run", "--json"], env=environment)
    assert result.exit_code == 0, result.stderr
    planned = {found["table"]: found for found in map(json.loads, result.stdout.splitlines())}
    assert {*TABLES, "sensor_trends", "valid_readings__quarantine"} <= set(planned) and everything(
        root
    ) == before
    one = CliRunner().invoke(commands.app, ["maintain", "valid_readings"], env=environment)
    assert (
        one.exit_code == 0
        and "valid_readings__quarantine" in one.stdout
        and "sensor_readings" not in one.stdout
    )


def digests(stage: Stage) -> dict[str, str]:
    """Of all columns, technical ones too."""
    return {name: str(digest(stage.rows(name).withColumnsRenamed(_SHOWN))) for name in TABLES}


_SHOWN = {"_arrival": "arrival", "_origin": "origin", "_partition": "partition"}


def everything(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


def files_of(path: Path) -> dict[str, int]:
    added = pa.table(DeltaTable(str(path)).get_add_actions(flatten=True))
    return dict(Counter(added.column("partition._partition").to_pylist()))


def checkpointed(stage: Stage) -> None:
    """As the writer does every 50 commits."""
    for name in TABLES:
        DeltaTable(str(stage.session.path(stage.session.catalog.table(name)))).create_checkpoint()


def _go_on(point: str) -> None:
    pass


def _crash_after_rows(point: str) -> None:
    if point == "rows":
        1 / 0  # noqa: B018


def _reading(hour: int, minute: int, n: int) -> dict[str, str]:
    return {
        "sensor_id": f"sensor-{n % 3}",
        "event_time": f"2026-01-01T{hour:02}:{minute + n:02}:00Z",
        "temperature_f": "50.00",
    }
