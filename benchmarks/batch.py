"""Batch: our backfill of campaign_views over whole hours against a plain Spark batch job over the same bronze table.

Each run is a fresh process that does the same job several times; the first pays for warming up and is kept apart.
"""

import json
import sys
from statistics import median

from benchmarks import check, measure, plain
from benchmarks.measure import Cost
from benchmarks.topic import START_MS, Load, Views
from lakehouse.settings import Settings, to_environment

HOURS = 2
MODULES = {"ours": "benchmarks.batch_ours", "plain batch": "benchmarks.batch_plain"}
LIMIT = 600.0  # seconds for one process


def events(load: Load) -> int:
    return HOURS * 3600 * load.workload.rate


def run(name: str, settings: Settings, expected: Views, times: int) -> tuple[Cost, Cost]:
    """The first call of a fresh process, and the median of the others; the counts checked. Raises BenchmarkError.

    `settings` is that of a root where our job has caught up.
    """
    result = settings.root / f"bounded_{name}.json"
    command = [sys.executable, "-m", MODULES[name], str(HOURS), str(times), str(result)]
    measure.run(command, to_environment(settings), settings.root / "batch.log", LIMIT)
    if name == "ours":
        written = check.ours(settings)
        check.compare(
            name, check.read_views(written.gold), check.upto(expected, written.frontier_ms)
        )
    else:
        # the earliest window begins before the first hour: it holds what was sent in it and happened just before
        whole = {
            k: n
            for k, n in check.upto(expected, START_MS + HOURS * 3_600_000).items()
            if k[1] >= START_MS
        }
        check.compare(name, check.read_views(plain.batch(settings.root)), whole)
    first, *others = json.loads(result.read_text())
    return Cost(*first), Cost(*(median(values) for values in zip(*others, strict=True)))
