"""A root in an object store: whole objects, conditional writes, locks between processes, whatever answers are lost."""

import multiprocessing
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from benchmarks import s3_server
from lakehouse.cli import doctor
from lakehouse.errors import JobError, SettingsError
from lakehouse.object_paths import ObjectPath, to_path
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.delta import committer, small_commits
from lakehouse.storage.disk import files, locks, objects, probe
from lakehouse.storage.disk.notes import Notes
from lakehouse.storage.lakehouse import load
from lakehouse.storage.versions import savepoints, upgrades

pytestmark = pytest.mark.slow

_SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def faults():
    """The faults of the server between this process and the store; none until a test sets some."""
    faults = s3_server.Faults()
    with s3_server.running(faults):
        yield faults


@pytest.fixture
def folder(faults, request) -> ObjectPath:
    faults.set(lost=0.0, refused=0.0)
    return s3_server.folder(request.node.name)


@pytest.fixture
def disturbed(faults, folder):
    faults.clear()
    faults.set(lost=0.2, refused=0.2)
    yield folder
    faults.set(lost=0.0, refused=0.0)
    assert faults.counts["lost"] and faults.counts["refused"]


def test_path_has_no_local_file(folder):
    file = folder / "a" / "b.json"
    with pytest.raises(TypeError, match="in an object store"):
        os.stat(file)
    with pytest.raises(TypeError, match="read, or written whole"):
        file.open("a")
    assert str(file) == f"{folder}/a/b.json"
    assert str(file.relative_to(folder)) == "a/b.json"
    assert to_path(str(file)) == file


def test_folders_are_what_names_begin_with(folder):
    for name in ("x/_delta_log/0.json", "x/_delta_log/1.json", "y/z/2.json"):
        (folder / name).write_bytes(name.encode())
    assert sorted(path.name for path in folder.iterdir()) == ["x", "y"]
    assert [path.name for path in folder.glob("*/_delta_log/*.json")] == ["0.json", "1.json"]
    assert folder.is_dir() and not folder.is_file() and (folder / "x/_delta_log/0.json").is_file()
    (folder / "x").remove_tree()
    assert [path.name for path in folder.iterdir()] == ["y"]
    assert not (folder / "x").exists()
    with pytest.raises(FileNotFoundError):
        next((folder / "x").iterdir())


def test_first_of_two_writers_wins(folder):
    file = folder / "one"
    first = file.create(b"1")
    assert first and file.create(b"2") is None
    second = file.swap(b"3", first)
    assert second and file.swap(b"4", first) is None
    assert file.read_bytes() == b"3"


def test_lost_answer_is_no_other_writer(disturbed):
    for number in range(60):
        version = (disturbed / f"{number}").create(b"1")
        assert version is not None
        assert (disturbed / f"{number}").swap(b"2", version) is not None


def _add(folder: str, who: int, times: int) -> None:
    notes = Notes[dict](to_path(folder) / "note.jsonl", lambda value: value)
    for number in range(times):
        notes.append({"who": who, "number": number})


def test_notes_of_several_processes_lose_no_line(disturbed):
    writers = [_SPAWN.Process(target=_add, args=(str(disturbed), who, 10)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    notes = list(Notes[dict](disturbed / "note.jsonl", lambda value: value).newest_first())
    assert Counter((note["who"], note["number"]) for note in notes) == {
        (who, number): 1 for who in range(3) for number in range(10)
    }


def _commit(path: str, who: int, times: int) -> None:
    table = to_path(path)
    rows = pa.table({"who": pa.array([who], pa.int64())})
    for batch in range(times):
        small_commits.commit(small_commits.files_of(rows, table), table, f"w{who}", batch, "")


def test_commits_of_several_processes_are_all_there_once(disturbed, faults):
    path = disturbed / "table"
    faults.set(lost=0.0, refused=0.0)  # a client of others makes the table
    schema = Schema.from_arrow(pa.schema({"who": pa.int64()}))
    DeltaTable.create(str(path), schema)
    faults.set(lost=0.1, refused=0.1)
    writers = [_SPAWN.Process(target=_commit, args=(str(path), who, 15)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    faults.set(lost=0.0, refused=0.0)
    table = DeltaTable(str(path))
    assert Counter(table.to_pyarrow_table()["who"].to_pylist()) == dict.fromkeys(range(3), 15)
    assert table.version() == 45
    named = [action for v in range(46) for action in actions_of(path, v) if "add" in action]
    assert len({action["add"]["path"] for action in named}) == len(named) == 45
    committer.forget(path)


def actions_of(path: Path, version: int) -> list[dict]:
    from lakehouse.storage.delta import delta_log

    return delta_log.actions(path, version) or []


def _hold(path: str, seconds: float) -> None:
    with locks.alone(to_path(path), 0, str(os.getpid())):
        time.sleep(seconds)


def test_lock_excludes_another_process_until_it_ends(folder):
    path = folder / "table.lock"
    other = _SPAWN.Process(target=_hold, args=(str(path), 4))
    other.start()
    while not locks.holder(path):
        time.sleep(0.1)
    assert locks.holder(path) == str(other.pid)
    with pytest.raises(JobError, match=f"pid={other.pid}"):
        locks.alone(path, 0, refusal=lambda who: JobError(f"pid={who}"))
    with locks.alone(path, 30):  # released at its end, before it would expire
        assert other.exitcode is not None or locks.holder(path) != str(other.pid)
    other.join()


@pytest.mark.parametrize("is_here", [True, False])
def test_lock_of_a_killed_process_is_taken(folder, monkeypatch, is_here):
    monkeypatch.setattr(objects, "WITHIN", 8.0)
    path = folder / "table.lock"
    other = _SPAWN.Process(target=_hold, args=(str(path), 60))
    other.start()
    while not locks.holder(path):
        time.sleep(0.1)
    assert other.pid
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    if not is_here:
        monkeypatch.setattr(objects, "_place", lambda: ["another host"])
    begun = time.monotonic()
    with locks.alone(path, 60):
        assert is_here or time.monotonic() - begun >= 8


def test_holder_that_slept_finds_its_lock_taken(folder, monkeypatch):
    monkeypatch.setattr(objects, "WITHIN", 6.0)
    first, second = (objects.Lock(folder / "lock", name) for name in ("first", "second"))
    first.take(0)
    first._ended.set()  # it renews no more, as a process that sleeps
    with second:
        second.take(None)
        assert second.is_held and not first.is_held


def test_lock_outlives_an_outage_of_the_store(folder, faults, monkeypatch, caplog):
    monkeypatch.setattr(objects, "_RENEWAL", 0.5)
    with locks.alone(folder / "lock", 0) as lock:
        faults.set(refused=1.0)
        end = time.monotonic() + 90
        while "cannot be renewed" not in caplog.text:
            assert time.monotonic() < end
            time.sleep(0.1)
        faults.set(refused=0.0)
        while not lock.is_held:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert lock.is_held and "has taken it" not in caplog.text
    assert locks.holder(folder / "lock") == ""


def test_file_that_holds_garbage_is_moved_aside(folder, caplog):
    (folder / "value.json").write_bytes(b"garbage")
    assert files.read_value(folder / "value.json", int, "it counts from one") is None
    [aside] = files.moved_aside(folder / "value.json")
    assert aside.read_bytes() == b"garbage" and not (folder / "value.json").exists()
    assert "it counts from one" in caplog.text


def test_store_that_is_not_there_is_refused_in_a_line(folder, monkeypatch):
    with pytest.raises(SettingsError, match=r"no such bucket.*make the bucket"):
        probe.check(to_path("s3://another/root"))  # type: ignore[arg-type]


def test_what_a_store_lacks_is_refused_by_name(folder, tmp_path):
    settings = Settings(root=folder, local=tmp_path, tables=("lakehouse.examples.sensors.tables",))
    lakehouse = load(settings)
    with pytest.raises(SettingsError, match="no savepoints of a root in an object store yet"):
        savepoints.create(lakehouse, "first")
    with pytest.raises(SettingsError, match="no versions of a table beside it"):
        upgrades.alone(settings, lakehouse.catalog.table("valid_readings"))


def test_doctor_judges_a_store(folder, tmp_path):
    sound = doctor._root(Settings(root=folder, local=tmp_path), "root")
    assert sound.state == "ok" and "keeps two writers apart" in sound.found
    missing = Settings(root=to_path("s3://missing/root"), local=tmp_path)
    assert doctor._root(missing, "root").state == "fail"


def test_settings_hand_the_root_down(folder, tmp_path):
    variables = {"LAKEHOUSE_ROOT": f"{folder}/", "LAKEHOUSE_LOCAL": str(tmp_path)}
    settings = from_environment(variables)
    assert settings.root == folder and isinstance(settings.root, ObjectPath)
    assert settings.own_folder.parent == tmp_path
    assert from_environment(to_environment(settings)) == settings
    for wrong in ("s3a://lake/root", "s3://"):
        with pytest.raises(SettingsError):
            from_environment({"LAKEHOUSE_ROOT": wrong})
    assert Settings(root=tmp_path).own_folder == tmp_path
