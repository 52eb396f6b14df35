"""The archive of Spark's classes: a JVM that it does not fit goes on without, and half an archive is never used."""

import subprocess

import pytest

from lakehouse.runtime import cds_archive, jars
from lakehouse.settings import java


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
