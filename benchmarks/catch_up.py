"""Catch-up: a full topic through bronze into the gold windows, by our job and by two plain scripts.

Every run is a fresh process on a fresh root. Start-up is taken out by slope: (t_big - t_small) / (n_big - n_small).
"""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import check, measure
from benchmarks.measure import Cost
from benchmarks.topic import Load, Views, address
from lakehouse.settings import Settings, to_environment

LIMIT = 600.0  # seconds for one run


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    command: tuple[str, ...]
    tables: Callable[[Settings], tuple[Path, Path, int]]


OURS = Case("ours", ("-m", "streaming_jobs.driver", "ads", "--available-now"), check.ours)
HAND_WRITTEN = Case("hand-written", ("-m", "benchmarks.handwritten"), check.by_hand)
HAND_TUNED = Case("hand-tuned", ("-m", "benchmarks.handtuned"), check.by_hand)
CASES = (OURS, HAND_WRITTEN, HAND_TUNED)


def run(case: Case, settings: Settings, load: Load, expected: Views, *, keep: bool = False) -> Cost:
    """One run of one case, checked; `settings` is that of the run, its root fresh. Raises BenchmarkError."""
    command = [sys.executable, *case.command]
    cost = measure.run(command, to_environment(settings), settings.root / "run.log", LIMIT)
    check.check(case.name, case.tables(settings), load.sent, expected)
    if not keep:
        shutil.rmtree(settings.root)
    return cost


def run_settings(base: Settings, work: Path, servers: str, load: Load, name: str) -> Settings:
    from dataclasses import replace

    return replace(address(base, work / name, servers), max_offsets_per_trigger=load.batch)
