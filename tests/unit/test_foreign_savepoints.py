"""A savepoint of somebody else: whatever its files say, a restore touches nothing outside of the root."""

import json
import os
from pathlib import Path

import pytest

from lakehouse.errors import SavepointError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import digest_of
from lakehouse.storage.lakehouse import load
from lakehouse.storage.versions import restoring, savepoints

TABLES = ("lakehouse.examples.sensors.tables",)
SOUND = {"layer": "bronze", "version": -1, "rows": 0, "frontier": "", "position": {}}


def savepoint_of(root: Path, tables: dict[str, dict], **others: str) -> Settings:
    """A root with the savepoint `given`, whose checksums fit, as whoever made it can have them."""
    settings = Settings(root=root, tables=TABLES)
    below = layout.savepoint_root(settings, "given")
    for name, text in others.items():
        path = below / name.replace("__SLASH__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    below.mkdir(parents=True, exist_ok=True)
    listed = layout.savepoint_file(settings, "given", "contents.jsonl")
    paths = sorted(path for path in below.rglob("*") if path.is_file())
    listed.write_text(
        "".join(json.dumps([str(p.relative_to(below)), digest_of(p)]) + "\n" for p in paths)
    )
    described = {
        "name": "given",
        "at": "2026-01-01T00:00:00+00:00",
        "note": "",
        "library": "1",
        "tables": {
            name: SOUND | {"code_version": "", "targets": []} | saved
            for name, saved in tables.items()
        },
        "files": len(paths),
        "bytes": 0,
        "contents": digest_of(listed),
    }
    layout.savepoint_file(settings, "given", "savepoint.json").write_text(json.dumps(described))
    return settings


@pytest.mark.parametrize(
    "table, saved",
    [
        ("../../neighbour", {}),
        ("neighbour", {"layer": "../.."}),
        ("neighbour", {"layer": ".."}),
        ("neighbour", {"layer": "_jobs"}),
        ("a/../../../neighbour", {}),
        ("", {"layer": "bronze"}),
        ("..", {}),
        ("a__quarantine", {}),
        ("a", {"layer": ["bronze"]}),
    ],
)
def test_a_name_in_a_savepoint_reaches_nothing_outside(tmp_path: Path, table: str, saved: dict):
    neighbour = tmp_path / "neighbour"
    neighbour.mkdir()
    (neighbour / "file").write_text("mine")
    settings = savepoint_of(tmp_path / "root", {table: saved})
    with pytest.raises(SavepointError, match=r"savepoint\.json.*drop it"):
        restoring.restore(load(settings), "given", keep=False)
    assert (neighbour / "file").read_text() == "mine"


def test_a_sound_savepoint_of_somebody_else_is_restored(tmp_path: Path):
    settings = savepoint_of(tmp_path / "root", {"readings": {}})
    assert restoring.restore(load(settings), "given", keep=False) == ""


@pytest.mark.parametrize(
    "path",
    [
        "_jobs/sensors/desired.json",
        "_savepoints/forked.json",
        "_broker/x",
        "loose",
        "_locks/runs/1",
    ],
)
def test_a_savepoint_with_files_that_none_has_is_refused(tmp_path: Path, path: str):
    """A fork would begin with them: the state that is wanted of a job, say."""
    settings = savepoint_of(tmp_path / "root", {"readings": {}}, **{path: "{}"})
    with pytest.raises(SavepointError, match=r"none of the folders"):
        restoring.fork(settings, "given", tmp_path / "fork")
    assert not (tmp_path / "fork").exists()


@pytest.mark.parametrize("to_folder", [True, False])
def test_a_savepoint_with_a_link_is_refused(tmp_path: Path, to_folder: bool):
    settings = savepoint_of(tmp_path / "root", {"readings": {}})
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("k")
    bronze = layout.savepoint_root(settings, "given") / "bronze"
    bronze.mkdir()
    os.symlink(secret if to_folder else secret / "key", bronze / "readings")
    with pytest.raises(SavepointError, match=r"a link"):
        savepoints.verify(settings, "given")


@pytest.mark.parametrize("path", ["/etc/hostname", "../../../../../../secret", "%2Fetc%2Fhostname"])
def test_a_log_in_a_savepoint_names_files_of_its_table_alone(tmp_path: Path, path: str):
    add = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0}
    commit = json.dumps({"add": add | {"dataChange": True}})
    log = f"bronze/readings/_delta_log/{0:020}.json"
    settings = savepoint_of(tmp_path / "root", {"readings": {}}, **{log: commit + "\n"})
    with pytest.raises(SavepointError, match=r"lies in it"):
        savepoints.verify(settings, "given")


def test_the_description_of_a_savepoint_is_in_its_checksums(tmp_path: Path):
    settings = Settings(root=tmp_path / "root", tables=TABLES)
    savepoints.create(load(settings), "ours", "as it was")
    savepoints.verify(settings, "ours")
    path = layout.savepoint_file(settings, "ours", "savepoint.json")
    path.write_text(path.read_text().replace("as it was", "as it is"))
    with pytest.raises(SavepointError, match=r"checksum is not the one"):
        savepoints.verify(settings, "ours")
    savepoints.drop(settings, "ours")


def test_a_savepoint_under_another_name_is_refused(tmp_path: Path):
    settings = savepoint_of(tmp_path / "root", {"readings": {}})
    layout.savepoint(settings, "given").rename(layout.savepoint(settings, "other"))
    with pytest.raises(SavepointError, match=r"another name"):
        savepoints.verify(settings, "other")
