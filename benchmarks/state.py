"""State: flat over many advances of the watermark, and larger than the memory that RocksDB is given; counts exact."""

import json
import sys
from dataclasses import dataclass, replace
from statistics import median

from benchmarks import measure
from benchmarks.measure import BenchmarkError
from lakehouse.settings import Settings, to_environment

MEMORY_MB = 16
LIMIT = 1_800.0  # seconds for one case


@dataclass(frozen=True, slots=True)
class State:
    """What the state of one run did: rows of state after each micro-batch, bytes of RocksDB's files and of its memory."""

    name: str
    keys: int
    rows: tuple[int, ...]
    files: int  # at most
    memory: int  # at most
    resident: int  # of the whole JVM, at most
    seconds: float

    @property
    def growth(self) -> float:
        """State rows in the second half of the run against the first, medians; what closes in the end left out."""
        half = len(self.rows) // 2
        return median(self.rows[half:-4]) / max(median(self.rows[2:half]), 1)

    @property
    def beyond_memory(self) -> float:
        return self.files / (MEMORY_MB << 20)


def run(base: Settings, keys: int, advances: int) -> list[State]:
    """The flat one, over so many advances of the watermark, and the large one.

    Raises BenchmarkError if a key is missing, or counted twice, or dropped.
    """
    few = max(keys // 300, 100)
    return [_run(base, "advancing", advances, few), _run(base, "growing", 12, keys // 12)]


def _run(base: Settings, name: str, commits: int, keys: int) -> State:
    settings = replace(base, root=base.root / f"state_{name}", state_memory_mb=MEMORY_MB)
    result = settings.root / "state.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.state_run",
        name,
        str(commits),
        str(keys),
        str(result),
    ]
    measure.run(command, to_environment(settings), settings.root / "run.log", LIMIT)
    found = json.loads(result.read_text())
    if found["keys"] != found["counted"] or found["keys"] < commits * keys or found["dropped"]:
        raise BenchmarkError(
            f"state, {name}: {found['keys']:,} keys counted {found['counted']:,} times, {found['dropped']} dropped, for "
            f"{commits * keys:,} sent once each; the run is void"
        )
    return State(
        name,
        commits * keys,
        tuple(found["rows"]),
        max(found["files"]),
        max(found["memory"]),
        max(found["resident"]),
        found["seconds"],
    )
