"""A job whose files hold garbage, in processes of their own."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.settings import Settings, to_environment
from lakehouse.storage import layout
from streaming_jobs import (
    desired,
    lease,
    progress,
    supervisor,
)
from streaming_jobs.desired import Event
from support.observed import status_of

NAMES = ("status.json", "desired.json", "history.json", "epoch.json")


@pytest.fixture
def settings(tmp_path) -> Settings:
    """A job that ran well, and was stopped."""
    settings = Settings(root=tmp_path / "root", tables=("lakehouse.examples.sensors.tables",))
    with lease.held(settings, "sensors") as turn:
        progress.write(settings, status_of(1, 1.0, state="stopped", epoch=turn.epoch))
    desired.wish(settings, "sensors", "stopped", "a test")
    desired.note(settings, "sensors", Event(progress.now(), "stopping", "a test", 1, 1.0))
    return settings


def folder(settings: Settings) -> Path:
    return layout.job_folder(settings, "sensors")


def test_a_job_is_started_over_garbage_in_each_of_its_files(settings):
    for name in NAMES:
        (folder(settings) / name).write_text("{")
    # the broker: the driver has come as far as that
    with pytest.raises(Exception, match="none is running"):
        supervisor.start(settings, "sensors", wait=60, by="a test")
    status = supervisor.status(settings, "sensors")
    assert status.state == "failed" and "none is running" in status.error
    assert [event.what for event in desired.history(settings, "sensors")] == ["started"]
    found = {
        path.name.partition(".unreadable")[0] for path in progress.unreadable(settings, "sensors")
    }
    assert found == {*NAMES} - {"desired.json"}, "which is written by what is asked for now"


AS_ANOTHER = """
import os
from lakehouse.settings import from_environment
from streaming_jobs import supervisor
os.getuid() or os.setuid(65534)
print(supervisor.status(from_environment(), "sensors"))
"""


def test_supervise_says_what_it_cannot_do_once(settings):
    (folder(settings) / "desired.json").write_text("{")
    command = [
        sys.executable,
        "-m",
        "lakehouse",
        "stream",
        "supervise",
        "sensors",
        "--every",
        "0.1",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | to_environment(settings), **pipes) as process:
        assert "desired.json.unreadable" in process.stdout.readline()
        time.sleep(1)  # ten more looks
        process.terminate()
        said, errors = process.communicate()
    assert (process.returncode, said) == (0, "") and errors.count(
        "it is now desired.json.unreadable"
    ) == 1


def test_who_may_only_read_is_told_and_changes_nothing(settings):
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to others
        open_to_all = replace(settings, root=Path(place) / "root")
        shutil.copytree(settings.root, open_to_all.root)
        Path(place).chmod(0o755)
        path = folder(open_to_all) / "status.json"
        path.write_text("{")
        folder(open_to_all).chmod(0o555)
        environment = os.environ | to_environment(open_to_all)
        run = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER], env=environment, capture_output=True, text=True
        )
        folder(open_to_all).chmod(0o755)
        assert run.stdout == "None\n" and "it stays where it is" in run.stderr, run
        assert path.read_text() == "{"
