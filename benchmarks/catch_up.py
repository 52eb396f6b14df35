"""Catch-up: a full topic through bronze into the gold windows, by our job and by plain scripts.

Every run is a fresh process on a fresh root. Start-up is taken out: counted are the events, the seconds and the CPU seconds
that follow the commit of the first micro-batch into bronze, for which a JVM starts, makes tables and compiles.
"""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import check, measure, plain
from benchmarks.check import Written
from benchmarks.measure import Cost
from benchmarks.topic import Load, Views
from lakehouse.settings import Settings, to_environment

LIMIT = 600.0  # seconds for one run


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    command: tuple[str, ...]
    bronze: Callable[[Settings], Path]
    written: Callable[[Settings], Written]


def _by_hand(name: str, module: str) -> Case:
    return Case(name, ("-m", module), lambda settings: plain.bronze(settings.root), check.by_hand)


OURS = Case(
    "ours", ("-m", "streaming_jobs.driver", "ads", "--available-now"), check.bronze, check.ours
)
HAND_WRITTEN = _by_hand("hand-written", "benchmarks.handwritten")
HAND_TUNED = _by_hand("hand-tuned", "benchmarks.handtuned")
BARE = _by_hand("bare", "benchmarks.bare")
CASES = (OURS, HAND_WRITTEN, HAND_TUNED, BARE)


def run(case: Case, settings: Settings, load: Load, expected: Views) -> tuple[Cost, Cost]:
    """One run of one case on the fresh root of `settings`, its counts checked: start-up, and the rest. Raises BenchmarkError."""
    # which the scripts have none of
    settings = replace(settings, max_offsets_per_trigger=load.batch, early_results=False)
    shutil.rmtree(settings.root, ignore_errors=True)
    # by version 0 the table was made
    first = case.bronze(settings) / "_delta_log" / f"{1:020}.json"
    command, log = [sys.executable, *case.command], settings.root / "run.log"
    costs = measure.run(command, to_environment(settings), log, LIMIT, first.exists)
    check.check(case.name, case.written(settings), load.sent, expected, load.complete_ms)
    return costs
