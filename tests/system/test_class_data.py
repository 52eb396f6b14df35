"""The archive of Spark's classes: a JVM that it does not fit goes on without, and half an archive is never used."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lakehouse.runtime import cds_archive, jars, kafka_address
from lakehouse.settings import Settings, java
from support.sensors_job import awaited


def started(options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [java(), *options.split(), "-version"], capture_output=True, text=True, timeout=60
    )


def test_a_java_that_the_archive_does_not_fit_goes_on_without_and_says_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(cds_archive, "archive", lambda of: tmp_path / f"{of}.jsa")
    assert cds_archive.options("spark") == ()
    (tmp_path / "spark.jsa").write_text("made by another java")
    began = started(" ".join(cds_archive.options("spark")))
    assert began.returncode == 0 and "cds" not in began.stdout + began.stderr, began


def test_an_archive_of_other_jars_is_not_taken_for_this_one(tmp_path, monkeypatch):
    before = [cds_archive.archive(of) for of in cds_archive.PROGRAMS]
    monkeypatch.setattr(jars, "SUMS", tmp_path / "jars.sha256")
    jars.SUMS.write_text("of other jars")
    after = [cds_archive.archive(of) for of in cds_archive.PROGRAMS]
    assert not {*before} & {*after}


def test_half_an_archive_is_refused_before_it_is_used(tmp_path):
    whole, half = tmp_path / "whole.jsa", tmp_path / "half.jsa"
    made = started(f"-XX:ArchiveClassesAtExit={whole}")
    assert made.returncode == 0 and whole.exists(), made
    cds_archive.fits(whole)
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(subprocess.CalledProcessError):
        cds_archive.fits(half)


RECORDED = """
import sys
from pathlib import Path
from lakehouse.runtime import cds_archive
from tools import record_classes
cds_archive.archive = lambda of: Path(sys.argv[1], f"{of}.jsa")
print("failed:", record_classes.make())
"""


def in_folder(folder: Path) -> list[psutil.Process]:
    """The processes that were started for a recording in that folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return [each for each in found if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.turn(0)
@pytest.mark.slow
def test_a_recording_that_is_cut_off_leaves_no_broker_and_says_its_steps(tmp_path):
    command = [sys.executable, "-c", RECORDED, str(tmp_path)]
    environment = os.environ | {"TMPDIR": str(tmp_path), "LAKEHOUSE_JARS": str(Settings().jars)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        said = [process.stdout.readline().strip() for _ in range(3)]
        (folder,) = (p for p in tmp_path.iterdir() if (p / "errors").exists())
        topic = Settings(root=folder / "topic")
        awaited(lambda: kafka_address.running(topic) is not None, "the broker runs")
        process.send_signal(signal.SIGKILL)
    assert [line[:7] for line in said] == ["1 of 4:", "2 of 4:", "3 of 4:"], said
    awaited(lambda: not in_folder(tmp_path), "all that it started has ended")
    assert kafka_address.running(topic) is None


@pytest.mark.slow
def test_a_recording_that_fails_says_why_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", RECORDED, str(tmp_path)]
    environment = os.environ | {"TMPDIR": str(tmp_path), "LAKEHOUSE_JARS": "/dev/null/none"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    failure = done.stdout.partition("failed:")[2]
    assert "exit code 1; " in failure and "/dev/null/none" in failure, done
    assert not in_folder(tmp_path) and not list(tmp_path.iterdir())
