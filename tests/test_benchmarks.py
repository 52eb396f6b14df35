"""The benchmark runs end to end; how fast, is for `make bench` to say. The live stream beside a backfill is in `test_ui`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import check, plot, report, soak
from benchmarks.latency import Latency
from benchmarks.measure import BenchmarkError, Cost
from benchmarks.report import Series

VIEWS = {("a", 0): 3, ("b", 0): 1, ("a", 10_000): 2}


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(1500)
def test_the_proof_is_timed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = quick(tmp_path, "proof")
    assert [len(each["proving"]) for each in found["proofs"]] == [1]
    assert len(found["targets"]) == 3


def quick(folder: Path, *parts: str) -> dict:
    """The numbers of a quick run, which has removed its topics and tables and ended its processes."""
    result = folder / "numbers.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", *parts, "--json", str(result), "--work", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert not list(folder.glob("lakehouse-bench-*")) and not _processes_of(folder)
    return json.loads(result.read_text())


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


def test_a_soak_finds_what_grows_after_its_warm_up():
    minutes = range(121)
    samples = {name: [5.0 * bound.scale] * 121 for name, bound in soak.BOUNDS.items()}
    samples |= {"seconds": [30.0 * n for n in minutes], "batches": [100.0 * n for n in minutes]}
    samples["JVM memory"] = [min(n, 20) * 40.0 * soak.MIB for n in minutes]  # warm after ten minutes
    samples["Delta logs"] = [100 * n * 9.0 * soak.KIB for n in minutes]
    found = {t.name: t for t in soak.trends(samples, 600)}
    assert all(t.within for t in found.values())
    assert found["Delta logs"].slope == pytest.approx(9) and found["JVM memory"].slope == pytest.approx(0)
    samples["driver memory"] = [n * 2.0 * soak.MIB for n in minutes]
    found = soak.trends(samples, 600)
    assert [(t.name, round(t.slope)) for t in found if not t.within] == [("driver memory", 240)]
    with pytest.raises(BenchmarkError, match="longer"):
        soak.trends(samples, 3_500)
    drawn = plot.svg(samples["seconds"], {"JVM & driver": samples["driver memory"]})
    assert drawn.count("L") == 120 and "JVM &amp; driver" in drawn
