"""What is done by key: an as-of join against a static one, a process function against Spark's windowed aggregate; rows exact."""

import json
import sys
from dataclasses import dataclass
from statistics import median

from benchmarks import measure
from lakehouse.settings import Settings, to_environment

CASES = {"as-of": 10, "process": 2}  # and how many rows for each version or key
LIMIT = 1_800.0  # seconds for one case


@dataclass(frozen=True, slots=True)
class ByKey:
    """Seconds of each time, in one warm process by turns, the rows written; the first of each is left out."""

    name: str
    rows: int
    keys: int
    ours: tuple[float, ...]
    spark: tuple[float, ...]  # the static join, or the aggregate

    @property
    def times(self) -> float:
        return median(self.ours) / median(self.spark)

    @property
    def rate(self) -> float:
        return self.rows / median(self.ours)


def run(base: Settings, keys: int, times: int) -> list[ByKey]:
    """Both, over so many keys, or versions of a tenth as many customers. Raises BenchmarkError."""
    found = []
    for name, each in CASES.items():
        rows = each * keys
        result = base.root / f"{name}.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.by_key_run",
            name,
            str(rows),
            str(keys),
            str(times),
            str(result),
        ]
        measure.run(command, to_environment(base), base.root / "by_key.log", LIMIT)
        spent = json.loads(result.read_text())
        found.append(ByKey(name, rows, keys, tuple(spent["ours"]), tuple(spent["spark"])))
    return found
