"""The root is made for one user, and `lakehouse doctor` says where others can read it."""

import os
import stat
from pathlib import Path

import pytest

from lakehouse.cli import doctor
from lakehouse.settings import Settings
from lakehouse.storage import restoring, savepoints
from lakehouse.storage.lakehouse import load
from streaming_jobs import desired

TABLES = ("lakehouse.examples.sensors.tables",)


def begin_job(settings: Settings) -> None:
    with desired.acting(settings, "sensors"):
        pass


def create_savepoint(settings: Settings) -> None:
    savepoints.create(load(settings), "one")


@pytest.mark.parametrize("begin", [begin_job, create_savepoint])
def test_a_root_is_made_for_one_user(tmp_path: Path, begin):
    before = os.umask(0o022)
    try:
        settings = Settings(root=tmp_path / "deep" / "root", tables=TABLES)
        begin(settings)
        assert stat.S_IMODE(settings.root.stat().st_mode) == 0o700
        assert stat.S_IMODE(settings.root.parent.stat().st_mode) == 0o755
    finally:
        os.umask(before)


def test_a_fork_is_made_for_one_user(tmp_path: Path):
    settings = Settings(root=tmp_path / "root", tables=TABLES)
    create_savepoint(settings)
    restoring.fork(settings, "one", tmp_path / "fork")
    assert stat.S_IMODE((tmp_path / "fork").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "mode, state", [(0o700, "ok"), (0o750, "note"), (0o705, "note"), (0o755, "note")]
)
def test_doctor_says_whether_others_can_read_the_root(tmp_path: Path, mode: int, state: str):
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(mode)
    finding = doctor._root(Settings(root=root, tables=TABLES), "root")
    assert finding.state == state and ("chmod 700" in finding.remedy) == (state == "note")
    assert root.stat().st_mode & 0o777 == mode, "what somebody chose stays"
