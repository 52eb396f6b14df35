"""What lateness costs: its bookkeeping where nothing is late, and one row in a hundred late by up to an hour and brought in."""

import json
import sys
from statistics import median

from benchmarks import measure
from benchmarks.measure import Cost
from benchmarks.topic import Load
from lakehouse.settings import Settings, to_environment

OURS, WITHOUT, UPDATED = "ours", "without the gate", "1 % late, updated"
SHARE = 0.01
LIMIT = 3_600.0  # seconds for all rounds


def run(
    settings: Settings, load: Load, batches: int, rounds: int, of_late: str
) -> dict[str, list[Cost]]:
    """The rounds of each case; `of_late`: address of the broker with late rows. Raises BenchmarkError.

    The record does the same work with and without the gate, so its median stands for both.
    """
    result = settings.root / "late.json"
    sizes = [str(each) for each in (load.events, batches, rounds)]
    command = [
        sys.executable,
        "-m",
        "benchmarks.late_run",
        *sizes,
        settings.bootstrap_servers,
        of_late,
        str(result),
    ]
    measure.run(command, to_environment(settings), settings.root / "run.log", LIMIT)
    found = {
        name: [(Cost(*record), Cost(*rest)) for record, rest in costs]
        for name, costs in json.loads(result.read_text()).items()
    }
    same = [record for name in (OURS, WITHOUT) for record, _ in found[name]]
    record = Cost(median(cost.wall for cost in same), median(cost.cpu for cost in same))
    alike = {name: [record + rest for _, rest in found[name]] for name in (OURS, WITHOUT)}
    return alike | {UPDATED: [each + rest for each, rest in found[UPDATED]]}
