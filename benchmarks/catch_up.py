"""Catch-up: a full topic through bronze into the gold windows, by our job and by plain scripts.

Every run is a fresh process on a fresh root. Start-up is taken out by slope: (t_big - t_small) / (n_big - n_small).
"""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks import check, measure
from benchmarks.check import Written
from benchmarks.measure import Cost
from benchmarks.topic import Load, Views
from lakehouse.settings import Settings, to_environment

LIMIT = 600.0  # seconds for one run


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    command: tuple[str, ...]
    written: Callable[[Settings], Written]


OURS = Case("ours", ("-m", "streaming_jobs.driver", "ads", "--available-now"), check.ours)
HAND_WRITTEN = Case("hand-written", ("-m", "benchmarks.handwritten"), check.by_hand)
HAND_TUNED = Case("hand-tuned", ("-m", "benchmarks.handtuned"), check.by_hand)
BARE = Case("bare", ("-m", "benchmarks.bare"), check.by_hand)
CASES = (OURS, HAND_WRITTEN, HAND_TUNED, BARE)


def run(case: Case, settings: Settings, load: Load, expected: Views) -> Cost:
    """One run of one case on the fresh root of `settings`, its counts checked. Raises BenchmarkError."""
    settings = replace(settings, max_offsets_per_trigger=load.batch)
    shutil.rmtree(settings.root, ignore_errors=True)
    cost = measure.run([sys.executable, *case.command], to_environment(settings), settings.root / "run.log", LIMIT)
    check.check(case.name, case.written(settings), load.sent, expected, load.complete_ms)
    return cost
