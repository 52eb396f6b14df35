"""The tour, played to its end, stopped by a check that fails, and ended by Ctrl-C; none leaves a process."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable
from rich.console import Console

from assets.parts import Parts
from assets.tour.guide import CheckError, Guide
from lakehouse.settings import Settings, from_environment
from lakehouse.stopping import Stop

LAKEHOUSE = Path(sys.executable).with_name("lakehouse")
TITLES = (
    "Events flow", "A wrong row", "A late row", "EQUAL", "kill -9, and it heals", "A row edited by hand",
    "A backfill beside the stream", "A change: planned, compared, promoted, rolled back", "A second process takes over",
)  # fmt: skip


@contextmanager
def tour(folder: Path) -> Iterator[subprocess.Popen]:
    """The command in a process of its own, without a terminal, and with settings that it must leave alone."""
    others = {
        "LAKEHOUSE_ROOT": str(folder.parent / "of the user"),
        "LAKEHOUSE_TABLES": "of_the_user",
    }
    with subprocess.Popen(
        [str(LAKEHOUSE), "tour", str(folder)],
        env=os.environ | others | {"LAKEHOUSE_JARS": str(from_environment().jars)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    assert not (folder.parent / "of the user").exists()
    assert [each for each in psutil.process_iter() if is_of(folder, each)] == []


def is_of(folder: Path, process: psutil.Process) -> bool:
    try:
        return str(folder) in " ".join([*process.cmdline(), *process.environ().values()])
    except psutil.Error:
        return False


def read_until(process: subprocess.Popen, text: str) -> None:
    said = []
    for line in process.stdout:
        said.append(line)
        if text in line:
            return
    pytest.fail(f"it ended before {text!r}: {''.join(said)}")


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_tour_verifies_nine_steps_and_leaves_nothing(tmp_path):
    folder = tmp_path / "tour"
    with tour(folder) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    parts = re.split(r"^\d of 9 · ", said, flags=re.MULTILINE)[1:]
    assert tuple(part.partition("\n")[0] for part in parts) == TITLES
    for part in parts:
        assert part.count("✓ verified: ") == 1 and "✗" not in part, part
    assert re.search(r"^9 of 9 steps verified in \d+ s$", said, re.MULTILINE)
    assert not folder.exists()


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tour_names_what_a_broken_table_lacks(tmp_path):
    folder = tmp_path / "tour"
    with tour(folder) as process:
        read_until(process, "2 of 9")
        DeltaTable(str(folder / ".lakehouse" / "gold" / "turnover")).delete("cents = 163")
        said, _ = process.communicate()
    assert process.returncode == 1, said
    found = " ".join(said.split())
    assert (
        "✗ not verified: turnover must have the sums of the orders that were sent: missing 1 ("
        in found
    )
    assert "01:03:00Z', 'a', 163)); not expected 0" in found
    assert (folder / "orders.py").exists(), "it stays, to be looked at"


@pytest.mark.turn(0)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_ends_the_tour_while_its_job_starts(tmp_path):
    folder = tmp_path / "tour"
    with tour(folder) as process:
        read_until(process, "$ lakehouse stream start orders")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
    assert process.returncode == 3, said
    assert "ended before the last step" in said and not folder.exists()


@pytest.mark.turn(2)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_next_tour_ends_what_a_killed_one_left(tmp_path):
    folder = tmp_path / "tour"
    again = [str(LAKEHOUSE), "tour", str(folder)]
    with tour(folder) as process:
        read_until(process, "$ lakehouse topic create orders")  # the broker runs
        beside = subprocess.run(again, capture_output=True, text=True)
        assert beside.returncode == 2 and f"still runs (pid={process.pid})" in beside.stderr
        process.kill()
        process.wait()
        assert [each for each in psutil.process_iter() if is_of(folder, each)]
        refused = subprocess.run(again, capture_output=True, text=True)
        assert refused.returncode == 2 and "a tour that was killed" in refused.stderr


@pytest.fixture
def guide(tmp_path) -> Guide:
    console = Console(record=True, width=60)
    return Guide(tmp_path, Parts(Settings(root=tmp_path), console, Stop(), lambda: os.environ))


def test_a_command_that_ends_otherwise_is_no_success(guide):
    guide.run("exit 3", exit_code=3)
    with pytest.raises(CheckError, match="`exit 3` must end with exit code 0, and ended with 3"):
        guide.run("exit 3")


def test_a_long_output_is_shown_in_part(guide):
    guide.run("seq 1 20; echo 'a line of' $(seq 1 99)", lines=3)
    assert guide.console.export_text().splitlines()[1:] == [
        "  1",
        "  2",
        "  3",
        "  … 18 more lines",
    ]
