"""What lateness costs: its bookkeeping where nothing is late, and one row in a hundred late by up to an hour and brought in."""

import shutil
import sys
from dataclasses import replace

from benchmarks import check, measure
from benchmarks.catch_up import LIMIT, Case
from benchmarks.measure import BenchmarkError, Cost
from benchmarks.topic import HOUR_MS, Load, Views
from lakehouse.settings import Settings, to_environment

WITHOUT = Case("without the gate", ("-m", "benchmarks.ungated"), check.ours)
UPDATED = "1 % late, updated"
SHARE = 0.01


def updated(settings: Settings, load: Load, expected: Views) -> Cost:
    """One catch-up and the update after it, of tables that let late rows in; closed hours checked. Raises BenchmarkError."""
    settings = replace(settings, max_offsets_per_trigger=load.batch, tables=("benchmarks.updated_ads",))
    shutil.rmtree(settings.root, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.updated"]
    cost = measure.run(command, to_environment(settings), settings.root / "run.log", LIMIT)
    written = check.ours(settings)
    check.check_rows(UPDATED, written, load.sent)
    if written.frontier_ms < load.complete_ms:
        raise BenchmarkError(f"{UPDATED}: its frontier ends before what it had to do; the run is void")
    closed = written.frontier_ms - written.frontier_ms % HOUR_MS
    found = check.upto(check.read_views(written.gold), closed)
    check.compare(UPDATED, found, check.upto(expected, closed))
    return cost
