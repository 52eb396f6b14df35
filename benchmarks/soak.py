"""`make soak`: the real job on a real broker for an hour; what it keeps in memory and on disk must not grow without end.

    python -m benchmarks.soak [--seconds 3600] [--plot soak.svg]

Micro-batches follow each other five times as fast as by default, and maintenance runs beside them six times. After the warm-up
a line is fitted through each series of samples. What is to stay as it is may not rise by more than so much an hour; what
grows with every micro-batch, until maintenance cuts it, not by more than so much for each. A rise that is smaller than the
noise of the series does not count. Exit codes: 0 all within their bounds, 1 one is not, or the job did not stay well.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import linear_regression

from rich.console import Console
from rich.table import Table

from batch_jobs import maintain
from benchmarks import plot, topic
from benchmarks.measure import BenchmarkError
from lakehouse.cli.console import out
from lakehouse.declare import catalog
from lakehouse.declare.catalog import Catalog
from lakehouse.errors import LakehouseError
from lakehouse.examples.sensors.producer import PRODUCER
from lakehouse.producers.sender import send
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import CommitLog
from streaming_jobs.supervision import supervisor

PIPELINE, FRESH_WITHIN, RATE = "sensors", "170 milliseconds", 500
MIB, KIB = 1 << 20, 1 << 10
_START = 300.0  # seconds for the job to run


@dataclass(frozen=True, slots=True)
class Bound:
    """How fast a series may rise, per hour or (`each`) per micro-batch; a rise over the run below `noise` is none."""

    unit: str
    scale: int
    slope: float
    noise: float
    each: bool = False


BOUNDS = {
    "driver memory": Bound("MiB", MIB, 24, 16),
    "JVM memory": Bound("MiB", MIB, 64, 96),
    "batch duration": Bound("s", 1, 0.2, 0.3),
    "checkpoints": Bound("MiB", MIB, 8, 4),
    "state": Bound("MiB", MIB, 8, 4),
    "commit logs": Bound("KiB", KIB, 1.5, 64, each=True),
    "progress": Bound("KiB", KIB, 8, 256, each=True),
    "job logs": Bound("KiB", KIB, 256, 64),
    "Delta logs": Bound("KiB", KIB, 24, 512, each=True),
    "log tables": Bound("KiB", KIB, 1, 256, each=True),
}
# name -> a value a sample; "seconds" and "batches" besides those of BOUNDS
Samples = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Trend:
    """What became of one series after the warm-up: its slope, in its unit per hour or per micro-batch."""

    name: str
    first: float
    last: float
    slope: float
    bound: Bound

    @property
    def within(self) -> bool:
        return self.slope <= self.bound.slope or self.last - self.first <= self.bound.noise


def trends(samples: Samples, warm_up: float) -> list[Trend]:
    """The fitted trend of each series from `warm_up` seconds on. Raises BenchmarkError if too little is left to fit."""
    begin = next(
        (i for i, at in enumerate(samples["seconds"]) if at >= warm_up), len(samples["seconds"])
    )
    if len(samples["seconds"]) - begin < 5:
        raise BenchmarkError(
            f"soak: fewer than 5 samples after {warm_up:.0f} s of warm-up; let it run longer"
        )
    hours, batches = (
        [x / by for x in samples[name][begin:]] for name, by in (("seconds", 3600), ("batches", 1))
    )
    found = []
    for name, bound in BOUNDS.items():
        series, over = (
            [value / bound.scale for value in samples[name][begin:]],
            batches if bound.each else hours,
        )
        slope, start = linear_regression(over, series)
        found.append(Trend(name, start + slope * over[0], start + slope * over[-1], slope, bound))
    return found


def run(settings: Settings, seconds: float, console: Console) -> Samples:
    """Sends to the job for so long and samples it 120 times. Raises BenchmarkError if it restarts or fails."""
    workload, loaded = replace(PRODUCER.workload, rate=RATE), catalog.load(settings)
    with topic.brokers(settings) as servers:
        settings = replace(settings, bootstrap_servers=servers)
        kafka_broker.ensure_topics(settings, {PRODUCER.topic: workload.partitions}, topic.TOPIC)
        start_ms = int(time.time() * 1000)
        records = PRODUCER.records(workload, start_ms, None)
        ended = threading.Event()
        sending = threading.Thread(
            target=send, args=(records, PRODUCER.topic, client_config(settings), ended)
        )
        sending.start()
        try:
            job = supervisor.start(settings, PIPELINE, wait=_START)
            return _sampled(settings, loaded, job.pid, seconds, console)
        finally:
            ended.set()
            sending.join()
            supervisor.stop(settings, PIPELINE)


def _sampled(
    settings: Settings, loaded: Catalog, pid: int, seconds: float, console: Console
) -> Samples:
    samples: Samples = {name: [] for name in ("seconds", "batches", *BOUNDS)}
    began = time.monotonic()
    maintenance = began + seconds / 6
    for n in range(121):
        time.sleep(max(0.0, began + n * seconds / 120 - time.monotonic()))
        now = supervisor.status(settings, PIPELINE)
        if (
            now is None
            or now.pid != pid
            or now.state != "running"
            or any(q.restarts for q in now.queries)
        ):
            raise BenchmarkError(f"soak: the job was to stay well and is {now}")
        if time.monotonic() >= maintenance:
            done = list(maintain.run(Lakehouse(settings, loaded)))
            console.log(
                f"maintenance: {sum(u.files for u in done)} small files, {sum(u.obsolete for u in done)} obsolete"
            )
            maintenance += seconds / 6
        for name, value in _sample(settings, loaded, now, time.monotonic() - began):
            samples[name].append(value)
    return samples


def _sample(
    settings: Settings, loaded: Catalog, now, seconds: float
) -> Iterator[tuple[str, float]]:
    root = settings.root
    last = (next(CommitLog(settings, t).by_stream(), None) for t in loaded.of_pipeline(PIPELINE))
    yield "seconds", seconds
    yield "batches", sum(c.batch + 1 for c in last if c)
    yield "driver memory", now.python_bytes
    yield "JVM memory", now.jvm_bytes
    yield "batch duration", max(q.batch_seconds for q in now.queries)
    yield "checkpoints", _bytes(root / "_checkpoints", "**/*")
    yield "state", sum(q.state_bytes for q in now.queries)
    yield "commit logs", _bytes(root / "_commit_log", "*.jsonl")
    yield "progress", _bytes(root / "_jobs", "*/progress.jsonl*")
    yield "job logs", _bytes(root / "_jobs", "*/driver.log*")
    yield "Delta logs", _bytes(root, "*/*/_delta_log/*")
    yield "log tables", _bytes(root / "_commit_log", "*/**/*")


def _bytes(folder: Path, pattern: str) -> int:
    total = 0
    for path in folder.glob(pattern):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # files come and go
            continue
    return total


def show(console: Console, found: list[Trend]) -> None:
    table = Table("series", "unit")
    for column in ("after warm-up", "at the end", "slope", "bound"):
        table.add_column(column, justify="right")
    table.add_column("")
    for t in found:
        per = "a micro-batch" if t.bound.each else "an hour"
        verdict = "[green]within[/green]" if t.within else "[red]ABOVE[/red]"
        numbers = (
            f"{t.first:,.2f}",
            f"{t.last:,.2f}",
            f"{t.slope:+,.2f} {per}",
            f"{t.bound.slope:g}",
        )
        table.add_row(t.name, t.bound.unit, *numbers, verdict)
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds",
        type=float,
        default=3600,
        help="the first ten minutes, at most half, are the warm-up",
    )
    parser.add_argument("--plot", type=Path, default=Path("soak.svg"))
    parser.add_argument(
        "--work", type=Path, help="folder for topics and tables; emptied at the end"
    )
    given = parser.parse_args()
    console = out()
    with tempfile.TemporaryDirectory(prefix="lakehouse-soak-", dir=given.work) as work:
        settings = replace(
            from_environment(),
            root=Path(work).resolve(),
            kafka={},
            bootstrap_servers="",
            fresh_within=FRESH_WITHIN,
            tables=("lakehouse.examples.sensors.tables",),
        )
        try:
            samples = run(settings, given.seconds, console)
            found = trends(samples, min(600.0, given.seconds / 2))
        except (BenchmarkError, LakehouseError) as err:
            console.print(f"void: {err}", style="red", markup=False)
            return 1
    show(console, found)
    series = {
        f"{name} ({b.unit})": [v / b.scale for v in samples[name]] for name, b in BOUNDS.items()
    }
    given.plot.write_text(plot.svg(samples["seconds"], series))
    console.print(f"{samples['batches'][-1]:,.0f} micro-batches; plot: {given.plot}")
    return 0 if all(t.within for t in found) else 1


if __name__ == "__main__":
    sys.exit(main())
