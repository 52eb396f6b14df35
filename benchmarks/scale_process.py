"""Many tables in one process: row tables over one ingest table are made and started, then take steps.

    python -m benchmarks.scale_process RESULT SIZE...

Each SIZE starts as many more queries, so the last one is the greatest. RESULT: a JSON object, size -> what was measured.
"""

import gc
import json
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks import measure
from benchmarks.command_cpu import declared
from lakehouse.declare.catalog import load
from lakehouse.declare.modules import imported
from lakehouse.producers.workload import iso
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.storage.session import Session
from lakehouse.stream import queries
from lakehouse.stream.advance import StepLoop
from lakehouse.testing import Stage
from streaming_jobs.queries import SupervisedQuery

# as in the tests: a small compiler, one thread of garbage collection
JVM = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
}
_STEPS = 1_000  # of all tables together, at each size, but at most ten of each table
_IDLE = 5.0  # seconds without input
_LIMIT = 300.0  # seconds until all tables have read what was fed


@dataclass(frozen=True, slots=True)
class Started:
    """A process of so many tables, whose queries run."""

    start: float  # seconds for all, one after the other, from the creation of the table on
    steps: int  # of each table
    step_cpu: float  # CPU seconds of a step
    round_seconds: float  # until each table has read a commit of the ingest table
    observed: float  # seconds to observe all queries, as each heartbeat does
    idle_cores: float
    python: float  # MiB
    jvm: float  # MiB, resident
    heap: float  # MiB, after a collection
    python_threads: int
    jvm_threads: int


class Process:
    """The queries of this process."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.session = stage, stage.session
        self.tables = [t for t in self.session.catalog if not t.kind.reads_sources]
        self.running: list[SupervisedQuery] = []
        self.fed = 0
        java: Any = self.session.spark._jvm
        self.java = java.java.lang
        self.jvm = psutil.Process(self.java.ProcessHandle.current().pid())

    def grow(self, size: int) -> Started:
        began = time.monotonic()
        for table in self.tables[len(self.running) : size]:
            queries.prepare(self.session, [table])
            query = SupervisedQuery(self.session, table)
            query.start()
            if not query.active:
                raise measure.BenchmarkError(f"table={table.name}: {query.status.error}")
            self.running.append(query)
        seconds = time.monotonic() - began
        for _ in range(2):  # each makes its plan
            self.round()
        steps = max(1, min(10, _STEPS // size))
        cpu, began = measure.own_cpu(self.session.spark), time.monotonic()
        for _ in range(steps):
            self.round()
        passed, spent = time.monotonic() - began, measure.own_cpu(self.session.spark) - cpu
        began = time.monotonic()
        for query in self.running:
            query.observe()
        observed = time.monotonic() - began
        return Started(
            seconds,
            steps,
            spent / steps / size,
            passed / steps,
            observed,
            self._idle(),
            *self._held(),
        )

    def round(self) -> None:
        """Feeds a row, and waits until all tables have it."""
        at = 1_767_225_600_000 + self.fed
        self.fed += 1
        self.stage.feed("events", [{"id": self.fed, "at": iso(at)}])
        end = time.monotonic() + _LIMIT
        for query in self.running:
            loop = query.query
            assert isinstance(loop, StepLoop)
            latest = loop.input.latest()
            while not loop.input.is_past(latest):
                if not loop.isActive or time.monotonic() > end:
                    raise measure.BenchmarkError(
                        f"table={loop.name}: {loop.exception() or 'it is late'}"
                    )
                time.sleep(0.02)

    def _idle(self) -> float:
        time.sleep(1)
        cpu = measure.own_cpu(self.session.spark)
        time.sleep(_IDLE)
        return (measure.own_cpu(self.session.spark) - cpu) / _IDLE

    def _held(self) -> tuple[float, float, float, int, int]:
        gc.collect()
        self.java.System.gc()
        beans = self.java.management.ManagementFactory
        heap = beans.getMemoryMXBean().getHeapMemoryUsage().getUsed()
        held = (psutil.Process().memory_info().rss, self.jvm.memory_info().rss, heap)
        python, jvm, heap = (size / 2**20 for size in held)
        return python, jvm, heap, threading.active_count(), beans.getThreadMXBean().getThreadCount()

    def check(self) -> None:
        """Raises BenchmarkError if a row is missing in the first or the last table."""
        for query in self.running:
            query.query.stop()  # type: ignore[union-attr]
        for table in (self.running[0].table, self.running[-1].table):
            rows = self.stage.rows(table.name).count()
            if rows != self.fed:
                raise measure.BenchmarkError(f"{table.name}: {rows} rows of {self.fed}")


def run(result: Path, sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory(prefix="lakehouse-scale-") as work:
        root = Path(work).resolve() / "root"
        base = replace(from_environment(), root=root, spark_conf=JVM, shuffle_partitions=1)
        settings = declared(base, max(sizes) + 1)
        with spark_session.opened(settings, "scale") as spark:
            # only the ingest table: the others are made as a job makes them, one by one
            stage = Stage(spark, root, *imported(declared(base, 1)))
            stage.session = Session(settings, load(settings), spark)
            process, measured = Process(stage), {}
            for size in sizes:
                measured[size] = asdict(process.grow(size))
                print(size, measured[size], flush=True)
                result.write_text(
                    json.dumps(measured)
                )  # a size that does not work leaves the others
            process.check()


if __name__ == "__main__":
    run(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]])
