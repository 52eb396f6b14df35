"""The root is made for one user, and `lakehouse doctor` says where others can read it."""

import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assets import ui
from lakehouse.cli import doctor, main
from lakehouse.settings import Settings, to_environment
from lakehouse.storage.disk import publish_lock
from lakehouse.storage.lakehouse import load
from lakehouse.storage.versions import restoring, savepoints
from streaming_jobs.supervision import desired, lease

TABLES = ("lakehouse.examples.sensors.tables",)


def begin_job(settings: Settings) -> None:
    with desired.lock_process(settings, "sensors"):
        pass


def create_savepoint(settings: Settings) -> None:
    savepoints.create(load(settings), "one")


def ask_for_job(settings: Settings) -> None:
    desired.wish(settings, "sensors", "running", "a test")


def take_lease(settings: Settings) -> None:
    with lease.acquire(settings, "sensors"):
        pass


def start_ui(settings: Settings) -> None:
    ui.dagster_environment(settings)


def rewrite_table(settings: Settings) -> None:
    lakehouse = load(settings)
    with publish_lock.publishing(settings, lakehouse.catalog.table("sensor_averages")):
        pass


@pytest.mark.parametrize(
    "begin", [begin_job, create_savepoint, ask_for_job, take_lease, start_ui, rewrite_table]
)
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


# what starts Spark, a broker or a server makes the root as `make_root` does, which tests of these see
FIRST = (
    ("maintain",),
    ("plan",),
    ("doctor",),
    ("stream", "stop"),
    ("stream", "status"),
    ("reconcile", "due"),
    ("reconcile", "status"),
    ("reconcile", "repair", "sensor_averages"),
    ("table", "list"),
    ("table", "late", "sensor_averages"),
    ("table", "quarantine", "valid_readings"),
    ("savepoint", "list"),
    ("savepoint", "create", "one"),
    ("upgrade", "list"),
    ("metrics", "--once"),
    ("publish", "stop"),
    ("publish", "status"),
)


@pytest.mark.parametrize("words", FIRST, ids=" ".join)
def test_a_first_command_leaves_no_root_that_others_can_read(tmp_path: Path, words):
    before = os.umask(0o022)
    try:
        settings = Settings(root=tmp_path / "root", tables=TABLES)
        CliRunner().invoke(main.app(), list(words), env=to_environment(settings))
        modes = [stat.S_IMODE(settings.root.stat().st_mode)] if settings.root.exists() else []
        assert modes in ([], [0o700])
    finally:
        os.umask(before)
