"""What the reconciliation costs: against computing the same range once, of a tick with nothing to do, of a digest."""

import json
import sys
from dataclasses import dataclass
from statistics import median

from benchmarks import batch, measure
from lakehouse.settings import Settings, to_environment


@dataclass(frozen=True, slots=True)
class Reconciling:
    """Seconds of each time, without the first; rows of the record that was digested."""

    computing: tuple[float, ...]
    reconciling: tuple[float, ...]
    tick: tuple[float, ...]
    digest: tuple[float, ...]
    rows: int

    @property
    def times(self) -> float:
        """How many times as long as computing it once: each time compared with its neighbour."""
        return median(p / c for p, c in zip(self.reconciling, self.computing, strict=True))

    @property
    def rate(self) -> float:
        return self.rows / median(self.digest)


def run(settings: Settings, times: int) -> Reconciling:
    """Of a root where our job has caught up. Raises BenchmarkError, also if the verdict is another than EQUAL."""
    result = settings.root / "reconciliation.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.reconcile_run",
        str(batch.HOURS),
        str(times),
        str(result),
    ]
    measure.run(
        command, to_environment(settings), settings.root / "reconciliation.log", batch.LIMIT
    )
    found = json.loads(result.read_text())
    rows = found.pop("rows")
    return Reconciling(**{name: tuple(seconds[1:]) for name, seconds in found.items()}, rows=rows)
