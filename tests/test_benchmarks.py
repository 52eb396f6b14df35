"""The benchmark runs end to end and counts exactly; how fast it is, is for `make bench` to say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import check, report
from benchmarks.latency import Latency
from benchmarks.measure import BenchmarkError, Cost
from benchmarks.report import Series

VIEWS = {("a", 0): 3, ("b", 0): 1, ("a", 10_000): 2}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_quick_run_counts_exactly_and_leaves_nothing_behind(tmp_path: Path) -> None:
    result = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(result), "--work", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1400)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(result.read_text())
    assert [(s["group"], s["name"]) for s in found["series"]] == [
        ("catch-up", "ours"), ("catch-up", "hand-written"), ("catch-up", "hand-tuned"),
        ("bounded", "ours"), ("bounded", "plain batch"),
        ("late", "ours"), ("late", "without the gate"), ("late", "1 % late, updated"),
    ]  # fmt: skip
    assert all(len(s["rounds"]) == 1 for s in found["series"])
    assert [each["name"] for each in found["live"]] == ["ours"] and found["live"][0]["windows"]
    assert [each["name"] for each in found["state"]] == ["advancing", "growing"]
    assert len(found["targets"]) == 13
    assert not list(tmp_path.glob("lakehouse-bench-*")), "topics and tables are removed"
    assert not _processes_of(tmp_path)


def _processes_of(folder: Path) -> list[str]:
    """Processes that were started with or work in `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.cwd(), process.environ().get("LAKEHOUSE_ROOT", "")]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            found.append(" ".join(words))
    return found


@pytest.mark.parametrize(
    "found",
    [
        {("a", 0): 3, ("b", 0): 1},
        {**VIEWS, ("a", 10_000): 1},
        {**VIEWS, ("c", 0): 1},
    ],
    ids=["missing", "wrong", "too many"],
)
def test_a_wrong_count_makes_the_run_void(found: dict) -> None:
    check.compare("case", dict(VIEWS), VIEWS)
    with pytest.raises(BenchmarkError, match=r"case: 1 of 3 counts are wrong .* the run is void"):
        check.compare("case", found, VIEWS)


def test_no_closed_window_makes_the_run_void() -> None:
    assert check.upto(VIEWS, 10_000) == {("a", 0): 3, ("b", 0): 1}, "a window that ends at the frontier is closed"
    with pytest.raises(BenchmarkError, match="no closed window"):
        check.compare("case", {}, check.upto(VIEWS, 9_999))


def test_targets_are_judged_round_by_round() -> None:
    ours = Series("catch-up", "ours", 1_000_000, [Cost(2, 4), Cost(4, 8), Cost(2, 4)])
    by_hand = Series("catch-up", "hand-written", 1_000_000, [Cost(3, 4), Cost(6, 8), Cost(1, 4)])
    goals = report.targets(report.Found([ours, by_hand], [Latency("ours", (1.0, 9.0, 2.0), 0.5)]))
    assert [(goal.value, goal.met) for goal in goals] == [(1.5, True), (1.0, False), (2.0, True)]
