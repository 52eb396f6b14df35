import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.errors import JarsError
from lakehouse.runtime.jars import COMMON, SUMS, Jars, resolve, sums_of, verify
from lakehouse.settings import from_environment


@pytest.fixture
def small(tmp_path):
    """A folder with a few small jars, and their sums."""
    texts = {"spark/a.jar": b"a", "spark/b.jar": b"b", "kafka/a.jar": b"another a"}
    for name, content in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    sums = tmp_path / "sums"
    sums.write_text(
        "".join(
            f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in texts.items()
        )
    )
    return tmp_path, replace(COMMON, sums=sums)


def test_jars_as_checked_in_pass(small):
    verify(*small)


def test_a_tampered_a_missing_and_a_strange_jar_are_each_named(small):
    home, sums = small
    (home / "spark/a.jar").write_bytes(b"A")
    (home / "kafka/a.jar").unlink()
    (home / "kafka/strange.jar").touch()
    with pytest.raises(JarsError) as failure:
        verify(home, sums)
    for told in (
        "spark/a.jar has another SHA-256 sum",
        "kafka/a.jar is missing",
        "kafka/strange.jar is not among",
    ):
        assert told in str(failure.value)
    assert "spark/b.jar" not in str(failure.value)
    assert str(home) in str(failure.value)


def test_every_jar_of_the_checked_in_sums_is_resolved_by_role():
    names = [line.split()[1] for line in SUMS.read_text().splitlines()]
    jars = resolve(from_environment().jars)
    assert sorted(f"{jar.parent.name}/{jar.name}" for jar in jars.spark + jars.kafka) == sorted(
        names
    )
    # what `tools.jar_sums` writes, once the jars are there
    assert sums_of(jars.spark[0].parents[1]) == SUMS.read_text()
    assert all(jar.parent.name == "spark" for jar in jars.spark)
    assert any(jar.name.startswith("delta-spark") for jar in jars.spark)
    assert any(jar.name.startswith("kafka_2.13") for jar in jars.kafka)


@pytest.fixture
def copied(tmp_path) -> Jars:
    """The real jars in a folder of the test's own, their times kept."""
    home = resolve(from_environment().jars).spark[0].parents[1]
    shutil.copytree(home, tmp_path / home.name)
    return resolve(tmp_path)


def test_the_second_resolve_needs_neither_java_nor_network(copied, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert resolve(tmp_path) == copied


def test_a_jar_changed_after_its_sum_was_checked_is_found_and_can_be_repaired(copied, tmp_path):
    jar = next(jar for jar in copied.spark if jar.name.startswith("delta-storage"))
    content = jar.read_bytes()
    jar.write_bytes(content[:-1] + b"x")
    with pytest.raises(JarsError, match=f"spark/{jar.name} has another SHA-256 sum"):
        resolve(tmp_path)
    jar.write_bytes(content)
    assert resolve(tmp_path) == copied


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JarsError, match="jars="):
        resolve(tmp_path / "file" / "jars")


def test_a_folder_below_home_is_not_one_of_that_name_here(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()  # no folder: nothing is fetched
    with pytest.raises(JarsError, match=f"jars={tmp_path}/taken: "):
        resolve(Path("~/taken"))
    assert not (tmp_path / "~").exists()
