"""A job whose files hold garbage, in processes of their own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lakehouse.settings import Settings, to_environment
from lakehouse.storage.disk import layout
from lakehouse.storage.lakehouse import load
from streaming_jobs import progress
from streaming_jobs.supervision import desired, lease, supervisor
from streaming_jobs.supervision.desired import Event
from streaming_jobs.supervision.holders import Place
from support.lines import note_read
from support.observed import status_of

NAMES = ("status.json", "desired.json", "history.json", "epoch.json")


@pytest.fixture
def settings(tmp_path) -> Settings:
    """A job that ran well, and was stopped."""
    settings = Settings(root=tmp_path / "root", tables=("lakehouse.examples.sensors.tables",))
    with lease.acquire(settings, "sensors") as turn:
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


AS_READER = """
from typer.testing import CliRunner
from lakehouse.cli import main
from lakehouse.reconcile import invalidation
from lakehouse.settings import from_environment
from lakehouse.storage.lakehouse import load
from streaming_jobs.supervision import supervisor
settings = from_environment()
print(supervisor.status(settings, "sensors"))
print(supervisor.lives(settings, "sensors"), "is starting elsewhere")
lakehouse = load(settings)
print(invalidation.look(lakehouse, lakehouse.catalog.table("sensor_averages"), {}, ())[0], "were changed")
for words in ("table list", "stream status", "stream start sensors"):
    done = CliRunner().invoke(main.app(), words.split())
    print(words, done.exit_code, "Traceback" in done.output, done.output)
"""
# root may write anywhere, unless it gives that up
READER = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]


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
    elsewhere = Place("second", "another boot", "1")
    desired.note(
        settings, "sensors", Event(progress.now(), "started", "a test", 1, 1.0, place=elsewhere)
    )
    note_read(settings, load(settings).catalog.table("valid_readings"), 1, ("sensor_readings",))
    (folder(settings) / "status.json").write_text("{")
    places = [settings.root, *settings.root.rglob("*")]
    for place in places:
        place.chmod(0o555 if place.is_dir() else 0o444)
    run = subprocess.run(
        [*([] if os.getuid() else READER), sys.executable, "-c", AS_READER],
        env=os.environ | to_environment(settings), capture_output=True, text=True,
    )  # fmt: skip
    for place in places:
        place.chmod(0o755)
    for said in (
        "None\nTrue is starting elsewhere\n{} were changed\n",
        "table list 0 False",
        "stream status 0 False",
        "stream start sensors 2 False error: file=",
        "the command must read or write there, and cannot (Permission denied); run it as the user",
    ):
        assert said in run.stdout, run
    assert "it stays where it is" in run.stderr, run
    assert "what the commit logs have since they were last copied" in run.stdout + run.stderr, run
    assert [settings.root, *settings.root.rglob("*")] == places
    assert (folder(settings) / "status.json").read_text() == "{"
