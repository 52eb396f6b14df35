"""Locks: one process at a time has a file, others wait or are refused, and read who has it."""

import subprocess
import sys

import pytest

from lakehouse.storage.disk import locks

HOLDING = (
    "import pathlib, sys\n"
    "from lakehouse.storage.disk import locks\n"
    "with locks.alone(pathlib.Path(sys.argv[1]), note='4711'):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


@pytest.fixture
def held(tmp_path):
    """A lock that another process has, and that process."""
    path = tmp_path / "folder" / "lock"
    command = [sys.executable, "-c", HOLDING, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield path, process
        process.kill()


def test_a_lock_of_another_process_is_refused_with_what_that_noted(held):
    path, _ = held
    for wait in (0, 0.3):
        with pytest.raises(locks.Locked, match=r"file=.*lock: one process at a time .*4711") as err:
            locks.alone(path, wait)
        assert err.value.holder == "4711"
    assert locks.holder(path) == "4711"


def test_a_lock_goes_with_its_process(held):
    path, process = held
    process.kill()
    with locks.alone(path, wait=60):
        assert locks.holder(path) == "4711", "the note before stays where none is given"
    assert locks.holder(path) == ""


def test_nobody_has_a_lock_that_was_never_taken(tmp_path):
    assert locks.holder(tmp_path / "lock") == ""
    assert not list(tmp_path.iterdir()), "to look makes nothing"
