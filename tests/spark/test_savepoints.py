"""Savepoints: taken while tables are at different places, restored, forked, moved; killed and damaged."""

import errno
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from assets import resources as resource
from assets import savepoints as dagster_savepoints
from lakehouse import expect, ingest_table, kafka, keyed_table, row_table, tumbling, window_table
from lakehouse.cli import main
from lakehouse.declare import catalog
from lakehouse.errors import SavepointError, SinkError
from lakehouse.settings import Settings, to_environment
from lakehouse.sinks.follower import Follower
from lakehouse.storage.delta import housekeeping
from lakehouse.storage.disk import layout, locks
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.versions import fork_guard, interruptions, restoring, savepoints
from lakehouse.testing import Stage, assert_stream_equals_batch
from streaming_jobs.supervision import supervisor
from support import TESTS

HERE = sys.modules[__name__]
START = datetime(2026, 1, 1, tzinfo=UTC)
SENSORS = "lakehouse.examples.sensors.tables"

visit_topic = kafka(
    "visits", schema="user STRING NOT NULL, at TIMESTAMP NOT NULL, value BIGINT NOT NULL"
)


@ingest_table(layer="bronze", event_time="at", delay="5 seconds")
def seen(visit_topic: DataFrame) -> DataFrame:
    return visit_topic


@row_table(layer="silver", expectations=[expect.column_values_to_be_between("value", max_value=90)])
def plain(seen: DataFrame) -> DataFrame:
    return seen.where("value > 0")


@window_table(layer="gold", window=tumbling("10 minutes"), keys=["user"])
def long(plain: DataFrame) -> DataFrame:
    """Kept in Spark's state."""
    return plain.groupBy("window", "user").agg(F.sum("value").alias("value"))


@keyed_table(layer="gold", keys=["user"])
def totals(seen: DataFrame) -> DataFrame:
    return seen.groupBy("user").agg(F.count("*").alias("n"), F.sum("value").alias("value"))


ALL = ("plain", "long", "totals")


def at(second: float, user: str = "a", value: int = 1) -> dict:
    return {"user": user, "at": (START + timedelta(seconds=second)).isoformat(), "value": value}


def feed(stage: Stage, minute: int) -> None:
    """A minute of rows in two commits; one of them late, one too large."""
    for half in range(2):
        seconds = range(60 * minute + 30 * half, 60 * minute + 30 * (half + 1), 7)
        rows = [at(s, "a", s % 7) for s in seconds] + [at(s + 1, "b", s % 5 + 1) for s in seconds]
        stage.feed("seen", [*rows, at(60 * minute - 700, "late", 5), at(60 * minute, "large", 99)])


def rows_of(stage: Stage) -> dict[str, list[str]]:
    hidden = ("_arrival", "_origin", "_partition", "_key")
    found = {name: stage.rows(name).drop(*hidden).collect() for name in ("seen", *ALL)}
    return {name: sorted(map(str, rows)) for name, rows in found.items()}


def reconciled(stage: Stage) -> dict[str, list[str]]:
    """The rows of each table once time has gone on; all are there once, in table and quarantine."""
    stage.advance("seen", at(36_000, "end", 0))
    stage.run(*ALL)
    for name in ALL:
        found = assert_stream_equals_batch(stage, name)
        assert found.rows_in_table and not found.rows_by_batch_runs, (name, found)
    large = stage.rows("plain", "quarantine").select("_arrival.offset")
    fed = stage.rows("seen").where("value = 99").count()
    assert large.count() == large.distinct().count() == fed
    return rows_of(stage)


def in_root(stage: Stage, root: Path) -> Stage:
    """The stage as it is now, for another root; what is there is not copied."""
    other = stage.copied(root)
    shutil.rmtree(root)
    return other


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(900)
def test_what_is_restored_or_forked_goes_on_without_a_row_lost_or_doubled(stage_of, tmp_path):
    stage = stage_of(HERE)
    settings, known = stage.session.settings, stage.session.catalog
    feed(stage, 0)
    stage.run(*ALL)
    feed(stage, 4)
    stage.run("plain", "totals")  # the others lag behind when the savepoint is taken
    savepoints.create(Lakehouse(settings, known), "early")
    forked, restored = in_root(stage, tmp_path / "fork"), in_root(stage, tmp_path / "of_offsets")

    feed(stage, 8)
    stage.run(*ALL)
    for name in ("seen", "plain"):  # the files of the savepoint are no files of the tables any more
        path = stage.session.path(known.table(name))
        partitions = [
            row["_partition"] for row in stage.rows(name).select("_partition").distinct().collect()
        ]
        housekeeping.compact(path, partitions)
    assert savepoints.held(settings, "early") > 0
    with_eight = rows_of(stage)

    restoring.fork(settings, "early", tmp_path / "fork")
    feed(forked, 12)
    forked.run(*ALL)
    expected = reconciled(forked)
    assert expected["seen"] != with_eight["seen"]

    before = restoring.restore(Lakehouse(settings, known), "early")
    restored.session = stage.session
    feed(restored, 12)
    restored.run(*ALL)
    assert reconciled(restored) == expected

    assert restoring.restore(Lakehouse(settings, known), before, keep=False) == ""
    assert rows_of(stage) == with_eight
    savepoints.verify(settings, "early")  # none of all that has touched it


@pytest.fixture
def session(filled, tmp_path) -> Iterator[tuple[Settings, catalog.Catalog]]:
    shutil.copytree(filled, tmp_path / "root")
    settings = Settings(root=tmp_path / "root", tables=(SENSORS,))
    yield settings, catalog.load(settings)


def everything(root: Path) -> dict[str, bytes]:
    """What the files of tables and commit logs hold."""
    found = (p for p in root.rglob("*") if p.is_file() and not p.name.endswith("lock"))
    relative = {str(p.relative_to(root)): p for p in found}
    kept = {
        name: p
        for name, p in relative.items()
        if not name.startswith(("_savepoints", "_locks", "_jobs"))
    }
    return {
        name: p.read_bytes()
        for name, p in kept.items()
        if "_last_checkpoint" not in name and ".crc" not in name
    }


def change(settings: Settings) -> None:
    """Damages tables as nothing else would: a partition removed, a commit log cut, a log longer."""
    shutil.rmtree(next((settings.root / "silver" / "valid_readings").glob("_partition=*")))
    (settings.root / "_commit_log" / "sensor_averages.jsonl").write_text("")
    for file in sorted(
        (settings.root / "bronze" / "sensor_readings" / "_delta_log").glob("*.json")
    )[-1:]:
        file.with_name(f"{int(file.stem) + 1:020}.json").write_text(file.read_text())


def test_a_savepoint_links_data_and_holds_what_the_tables_lose(session):
    settings, known = session
    made = savepoints.create(Lakehouse(settings, known), "one", "before the change")
    root = layout.savepoint_root(settings, "one")
    data = [p for p in root.rglob("*.parquet") if "_delta_log" not in p.parts]
    assert data and all(p.stat().st_nlink > 1 for p in data)
    assert set(made.tables) == {table.name for table in known}
    readings = made.tables["sensor_readings"]
    assert readings.rows > 0 and readings.frontier and readings.position
    held = savepoints.held(settings, "one")
    size = sum(p.stat().st_size for p in data if "valid_readings" in p.parts)
    shutil.rmtree(settings.root / "silver" / "valid_readings")
    assert savepoints.held(settings, "one") - held >= size > 0
    assert [each.name for each in savepoints.savepoints(settings)] == ["one"]
    savepoints.drop(settings, "one")
    assert not savepoints.savepoints(settings) and not root.exists()


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a b", "-x"])
def test_a_name_that_is_no_folder_of_its_own_is_refused(session, name):
    with pytest.raises(SavepointError, match="a name has letters, digits"):
        savepoints.create(Lakehouse(*session), name)


def test_a_name_that_is_taken_is_refused_and_one_that_is_not_is_named(session):
    settings, known = session
    savepoints.create(Lakehouse(settings, known), "one")
    with pytest.raises(SavepointError, match="savepoint=one: there is one of that name"):
        savepoints.create(Lakehouse(settings, known), "one")
    with pytest.raises(SavepointError, match=r"savepoint=two: .*there are: one"):
        restoring.restore(Lakehouse(settings, known), "two")


def test_one_byte_another_file_and_one_that_is_missing_are_named(session):
    settings, known = session
    root = settings.root / "_savepoints" / "one" / "root"

    def refused(path: Path, why: str) -> None:
        before = everything(settings.root)
        for use in (
            lambda: savepoints.verify(settings, "one"),
            lambda: restoring.restore(Lakehouse(settings, known), "one", keep=False),
            lambda: restoring.fork(settings, "one", settings.root.parent / "fork"),
        ):
            with pytest.raises(SavepointError, match=f"file={path}: it {why}"):
                use()
        assert everything(settings.root) == before and not (settings.root.parent / "fork").exists()

    savepoints.create(Lakehouse(settings, known), "one")
    data = next(p for p in sorted(root.rglob("*.parquet")) if "_delta_log" not in p.parts)
    whole = data.read_bytes()
    data.unlink()
    refused(data, "is missing")
    data.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    refused(data, "is damaged")
    data.write_bytes(whole)
    savepoints.verify(settings, "one")
    (root / "more").touch()
    refused(root / "more", "is none of its files")
    (root / "more").unlink()
    listed = root.parent / "contents.jsonl"
    lines = listed.read_text()
    listed.write_text(lines.partition("\n")[2])
    with pytest.raises(SavepointError, match="the list of its files is not the one"):
        savepoints.verify(settings, "one")
    (root.parent / "savepoint.json").write_text("{")
    with pytest.raises(
        SavepointError, match=r"savepoint=one, file=.*savepoint.json: .*cannot be read"
    ):
        savepoints.savepoints(settings)
    savepoints.drop(settings, "one")


KILLED = """
import os, signal, sys
from pathlib import Path
from assets import resources as resource
from assets import savepoints as dagster_savepoints
from lakehouse.cli import main
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.lakehouse import load
from lakehouse.storage.versions import restoring
settings = Settings(root=Path(sys.argv[1]), tables=(sys.argv[2],))
put, calls = restoring.put, 0
def killed(source, to):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        put(source, to.with_name("." + to.name + ".new"))  # half of it
        os.kill(os.getpid(), signal.SIGKILL)
    put(source, to)
restoring.put = killed
restoring.restore(load(settings), "one", keep=False)
"""


@pytest.mark.slow
@pytest.mark.parallel
def test_a_restore_that_is_killed_is_seen_and_goes_on(session):
    settings, known = session
    expected = everything(settings.root)
    savepoints.create(Lakehouse(settings, known), "one")
    savepoints.create(Lakehouse(settings, known), "other")
    for call in ("1", "7", "12"):
        change(settings)
        run = [sys.executable, "-c", KILLED, str(settings.root), SENSORS, call]
        assert subprocess.run(run, timeout=120).returncode == -signal.SIGKILL
        with pytest.raises(SavepointError, match="a restore of the savepoint one was cut off"):
            interruptions.check(settings)
        with pytest.raises(SavepointError, match="restore one` again"):
            supervisor.start(settings, "sensors")
        with pytest.raises(SavepointError, match="a restore of the savepoint one was cut off"):
            restoring.restore(Lakehouse(settings, known), "other")
        restoring.restore(Lakehouse(settings, known), "one")
        interruptions.check(settings)
        assert everything(settings.root) == expected
    layout.restoring(settings).write_text("no JSON")
    with pytest.raises(SavepointError, match=r"file=.*restoring.json: .*cannot be read"):
        supervisor.start(settings, "sensors")


def test_a_create_and_a_fork_that_are_killed_leave_nothing_half_that_is_taken_for_whole(
    session, tmp_path
):
    settings, _ = session
    run = [sys.executable, "-m", "support.killed_savepoints", str(settings.root), SENSORS]
    ended = subprocess.run(
        [*run, str(tmp_path / "fork")], cwd=TESTS, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("kills of") == 2, ended.stdout
    savepoints.verify(settings, "killed")
    fork = everything(tmp_path / "fork")
    assert everything(layout.savepoint_root(settings, "one")) == fork

    half = layout.savepoint(settings, ".other.new")
    half.mkdir()
    shown = CliRunner().invoke(main.app(), ["savepoint", "list"], env=to_environment(settings))
    assert "killed" in shown.output and f"folder={half}: a command was killed" in shown.output
    savepoints.drop(settings, "killed")
    assert not half.exists()


def test_an_exported_savepoint_is_the_same_elsewhere(session, tmp_path):
    settings, known = session
    made = savepoints.create(Lakehouse(settings, known), "one")
    file = tmp_path / "one.tar"
    restoring.export(settings, "one", file)
    with pytest.raises(SavepointError, match=f"file={file}: it is there already"):
        restoring.export(settings, "one", file)
    there = Settings(root=tmp_path / "there", tables=(SENSORS,))
    assert restoring.take_in(there, file) == made
    with pytest.raises(SavepointError, match="there is one of that name"):
        restoring.take_in(there, file)
    expected = everything(settings.root)
    restoring.restore(Lakehouse(there, known), "one", keep=False)
    assert everything(there.root) == expected
    given = bytearray(file.read_bytes())
    given[len(given) // 2] ^= 1
    file.write_bytes(given)
    elsewhere = replace(there, root=tmp_path / "elsewhere")
    with pytest.raises(
        SavepointError, match=r"is damaged|cannot be read|is none of|is missing|list of its files"
    ):
        restoring.take_in(elsewhere, file)
    assert not savepoints.savepoints(elsewhere)


def test_a_fork_does_not_publish_where_the_other_one_does(tmp_path):
    there = Settings(root=tmp_path / "there", tables=("examples.bank.tables",))
    known = catalog.load(there)
    savepoints.create(Lakehouse(there, known), "one")
    beside = restoring.fork(there, "one", tmp_path / "beside")
    targets = {target.name: (table, target) for table in known for target in table.publish}
    assert set(targets) == {"transactions.debits", "transactions.credits"}
    for name, (source, target) in targets.items():
        told = f"target={name}: the lakehouse in {there.root}, of which this one is a fork"
        with pytest.raises(SinkError, match=told):
            Follower(Lakehouse(beside, known), source, target).begin()
    fork_guard.check(there, "transactions.debits")
    fork_guard.check(beside, "another")


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_nothing_half_and_says_so(session, monkeypatch, tmp_path):
    settings, known = session
    before = everything(settings.root)
    savepoints.create(Lakehouse(settings, known), "one")
    with monkeypatch.context() as disk:
        disk.setattr(shutil, "copyfile", full)
        with pytest.raises(
            SavepointError,
            match=r"savepoint=two: it must be written whole .*No space left.*make room",
        ):
            savepoints.create(Lakehouse(settings, known), "two")
        with pytest.raises(SavepointError, match=r"root=.*fork: it must be written whole"):
            restoring.fork(settings, "one", tmp_path / "fork")
        with pytest.raises(
            SavepointError, match=r"savepoint=one: its tables .*run this command again"
        ):
            restoring.restore(Lakehouse(settings, known), "one", keep=False)
    left = [path.name for path in (settings.root / "_savepoints").iterdir()]
    assert (
        sorted(left) == [".lock", "one", "restoring.json"] and not (tmp_path / ".fork.new").exists()
    )
    restoring.restore(Lakehouse(settings, known), "one")
    assert everything(settings.root) == before


def test_what_a_killed_command_left_goes_with_the_next_one(session):
    settings, known = session
    savepoints.create(Lakehouse(settings, known), "one")
    for left in (".two.new", ".three.gone"):
        shutil.copytree(layout.savepoint(settings, "one"), layout.savepoint(settings, left))
    assert [each.name for each in savepoints.savepoints(settings)] == ["one"]
    savepoints.create(Lakehouse(settings, known), "four")
    assert {path.name for path in (settings.root / "_savepoints").iterdir()} == {
        ".lock",
        "one",
        "four",
    }


def test_a_file_that_is_being_written_is_not_taken(session):
    settings, known = session
    table = settings.root / "silver" / "valid_readings"
    writing = next(table.glob("_partition=*")) / "part-00009.snappy.parquet"
    writing.write_bytes(b"PAR1 half")
    savepoints.create(Lakehouse(settings, known), "one")
    writing.write_bytes(b"PAR1 whole PAR1")
    savepoints.verify(settings, "one")
    assert not list(layout.savepoint_root(settings, "one").rglob(writing.name))


def test_every_command_works_on_a_lakehouse(session, tmp_path):
    settings, _ = session
    file, there = tmp_path / "one.tar", replace(settings, root=tmp_path / "there")
    for command, said, of in (
        (["create", "one", "--note", "of a test"], "one: ", settings),
        (["show", "one"], "sensor_averages", settings),
        (["verify", "one"], "each as it was", settings),
        (["export", "one", str(file)], str(file), settings),
        (["import", str(file)], "one: imported", there),
        (["list", "--json"], '"held"', there),
        (["restore", "one", "--yes", "--discard"], "are as they were", there),
        (["drop", "one", "--yes"], "one: dropped", settings),
    ):
        environment = to_environment(of)
        shown = CliRunner().invoke(main.app(), ["savepoint", *command], env=environment)
        assert shown.exit_code == 0 and said in shown.output, (command, shown.output)
    assert (tmp_path / "there" / "gold" / "sensor_averages").is_dir()


def test_dagster_creates_keeps_the_newest_and_restores(session):
    settings, _ = session
    resources = {"lakehouse": resource.LakehouseResource.of(settings, own=("root", "tables"))}

    def restored(name: str, **how: bool) -> bool:
        wanted = {"ops": {"restore": {"config": {"savepoint": name, **how}}}}
        return dagster_savepoints.restore_savepoint.execute_in_process(
            wanted, resources=resources
        ).success

    config = {"ops": {"create": {"config": {"prefix": "nightly", "keep": 1}}}}
    for _ in range(2):
        time.sleep(1.1)  # their names have seconds
        made = dagster_savepoints.create_savepoint.execute_in_process(config, resources=resources)
        assert made.success
    (only,) = savepoints.savepoints(settings)
    assert made.output_for_node("create") == only.name and only.name.startswith("nightly-")
    expected = everything(settings.root)
    change(settings)
    with pytest.raises(dg.Failure, match="what is there now would be kept first, and is not whole"):
        restored(only.name, discard=False)
    assert restored(only.name, discard=True)
    assert everything(settings.root) == expected


def test_of_scheduled_ones_the_newest_stay(session):
    settings, known = session
    for name in ("daily-1", "daily-2", "mine", "daily-3"):
        savepoints.create(Lakehouse(settings, known), name)
    assert savepoints.drop_all_but(settings, "daily-", 2) == ["daily-1"]
    assert [each.name for each in savepoints.savepoints(settings)] == ["daily-2", "mine", "daily-3"]


def test_one_command_at_a_time(session, monkeypatch):
    settings, known = session
    monkeypatch.setattr(savepoints, "_BUSY", 0.0)
    with (
        locks.alone(layout.savepoints_lock(settings), note="4711"),
        pytest.raises(SavepointError, match=r"pid=4711.*one at a time"),
    ):
        savepoints.create(Lakehouse(settings, known), "one")


def test_a_table_that_has_read_beyond_is_named(session):
    settings, known = session
    savepoints.create(Lakehouse(settings, known), "one")
    path = layout.savepoint_file(settings, "one", "savepoint.json")
    given = json.loads(path.read_text())
    del given["tables"]["sensor_averages"]
    del given["checksum"]  # as one has it that an earlier version made
    path.write_text(json.dumps(given))
    with pytest.raises(SavepointError, match="table=sensor_averages: it is not in the savepoint"):
        restoring.restore(Lakehouse(settings, known), "one")
