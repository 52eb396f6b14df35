"""What one more table costs: cores and memory, by its kind, beside a stream of 200 events a second.

    python -m benchmarks.one_more [--rate 200] [--seconds 30] [--only row join ...]

The queries of a job run in this process, as in a streaming job: an ingest table from a real broker, and the total of each
account. Beside them four tables of one kind run for so long, then four of the next. What is said of a kind is a fourth of the
difference to the stream without them, which runs before and after. The supervision of a job is not in it. Memory is what is held
behind a collection of the JVM's garbage. Exit code 1 if a row is missing in the end: then the numbers are void.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import measure, one_more_tables, topic
from benchmarks.measure import BenchmarkError
from lakehouse.cli.console import out
from lakehouse.errors import LakehouseError
from lakehouse.producers.workload import ORDINARY, Record, iso
from lakehouse.runtime import kafka_broker, spark_session
from lakehouse.settings import from_environment
from lakehouse.stream import queries
from lakehouse.stream.strategy import strategy
from lakehouse.testing import Stage

TOPIC, ACCOUNTS = "more-payments", 1_000
WARM_UP, SETTLING = 15.0, 10.0  # seconds: of each kind at first, and before it is measured
COPIES = one_more_tables.COPIES


@dataclass(frozen=True, slots=True)
class Spent:
    """What the process took over a while."""

    cores: float
    steps: float  # a second, of the tables that are measured
    jvm: float  # MiB
    python: float  # MiB


@dataclass(frozen=True, slots=True)
class More:
    """What a table of one kind adds."""

    kind: str
    strategy: str
    cores: float
    steps: float  # a second
    jvm: float  # MiB
    python: float  # MiB

    @property
    def cpu(self) -> float | None:
        """CPU seconds of a step."""
        return self.cores / self.steps if self.steps else None


def added(kind: str, filled_by: str, found: Spent, without: Sequence[Spent], copies: int) -> More:
    """What one of so many tables adds to the mean of what the stream takes without them."""

    def one(name: str) -> float:
        before = sum(getattr(each, name) for each in without) / len(without)
        return (getattr(found, name) - before) / copies

    return More(kind, filled_by, one("cores"), found.steps / copies, one("jvm"), one("python"))


def records(rate: int) -> Iterator[Record]:
    """Payments from now on, so many a second, of a thousand accounts."""
    now = int(time.time() * 1000)
    for number in count():
        at = now + number * 1000 // rate
        row = {
            "id": number,
            "account": f"account-{number * 7919 % ACCOUNTS:04}",
            "at": iso(at),
            "cents": number * 37 % 100_000,
        }
        yield Record(None, json.dumps(row).encode(), number % 2, at, at, ORDINARY)


class Measured:
    """The queries of this process."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.session = stage, stage.session

    def start(self, names: Sequence[str]) -> list[Any]:
        return [queries.start(self.session, self.session.catalog.table(name)) for name in names]

    def over(self, running: Sequence[Any], seconds: float) -> Spent:
        """What is spent over so many seconds; `running`: the queries whose steps count."""
        before = [_newest(query) for query in running]
        cpu, began = measure.own_cpu(self.session.spark), time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - began
        cores = (measure.own_cpu(self.session.spark) - cpu) / passed
        steps = sum(_newest(q) - n for q, n in zip(running, before, strict=True)) / passed
        return Spent(cores, steps, *_held(self.session.spark))

    def of(self, kind: str, settling: float, seconds: float) -> Spent:
        running = self.start(one_more_tables.names(kind))
        try:
            time.sleep(settling)
            found = self.over(running, seconds) if seconds else Spent(0, 0, 0, 0)
            for query in running:
                if error := query.exception():
                    raise BenchmarkError(f"table={query.name}: {error}; the run is void")
            return found
        finally:
            for query in running:
                query.stop()


def run(
    stage: Stage, rate: int, seconds: float, kinds: Sequence[str], say: Callable[[str], None]
) -> list[More]:
    """The settings of the stage have the address of a broker. Raises BenchmarkError."""
    measured = Measured(stage)
    base = measured.start(["payments", "balances"])
    with topic.sending(stage.session.settings, records(rate), TOPIC) as sending:
        say(f"warming up, {WARM_UP:.0f} s a kind")
        for kind in kinds:
            measured.of(kind, WARM_UP, 0)
        without = [measured.over(base, seconds)]
        found = {}
        for kind in kinds:
            say(f"four tables of the kind {kind}")
            found[kind] = measured.of(kind, SETTLING, seconds)
        time.sleep(SETTLING)
        without.append(measured.over(base, seconds))
    say(f"without them {', '.join(f'{each.cores:.2f}' for each in without)} cores are busy")
    sent = sending.result().sent
    for query in base:
        query.processAllAvailable()
        query.stop()
    _check(stage, sent, kinds)
    engine = {k: strategy(stage.session, _first(stage, k)) for k in kinds}
    return [added(k, engine[k], found[k], without, COPIES) for k in kinds]


def _first(stage: Stage, kind: str):
    return stage.session.catalog.table(one_more_tables.names(kind)[0])


def _check(stage: Stage, sent: int, kinds: Sequence[str]) -> None:
    """Each payment is there once, and counted once by what counts all. Raises BenchmarkError."""
    counted = {"payments": stage.rows("payments").count()}
    if "row" in kinds:
        name = one_more_tables.names("row")[0]
        stage.run(name)
        counted[name] = stage.rows(name).count()
    (total,) = stage.rows("balances").selectExpr("sum(payments)").collect()[0]
    for name, rows in (counted | {"balances": total}).items():
        if rows != sent:
            raise BenchmarkError(f"{name}: {rows:,} payments of {sent:,} sent; the run is void")


def _newest(query: Any) -> int:
    return max((report.batchId for report in query.recentProgress), default=-1)


def _held(spark: SparkSession) -> tuple[float, float]:
    """MiB that the JVM and Python hold, once what is not needed any more is given back."""
    gc.collect()
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    used = memory.getHeapMemoryUsage().getUsed() + memory.getNonHeapMemoryUsage().getUsed()
    return used / 2**20, psutil.Process().memory_info().rss / 2**20


def show(console: Console, found: Sequence[More], rate: int) -> None:
    table = Table("one more", title=f"what a table adds at {rate:,} events/s")
    for column in ("engine", "cores", "steps a second", "CPU s a step", "MiB, JVM", "MiB, Python"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for each in found:
        cpu = f"{each.cpu:.3f}" if each.cpu is not None else "–"
        memory = (f"{each.jvm:.1f}", f"{each.python:.1f}")
        table.add_row(
            each.kind, each.strategy, f"{each.cores:.3f}", f"{each.steps:.2f}", cpu, *memory
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.one_more", description=(__doc__ or "").splitlines()[0]
    )
    kinds = tuple(one_more_tables.KINDS)
    parser.add_argument("--rate", type=int, default=200, help="events a second")
    parser.add_argument("--seconds", type=float, default=30, help="of each kind")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, help="these kinds")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    given = parser.parse_args()
    console = out()
    with tempfile.TemporaryDirectory(prefix="lakehouse-one-more-") as work:
        root = Path(work).resolve()
        try:
            found = _on_a_broker(root, given, console)
        except (BenchmarkError, LakehouseError) as err:
            console.print(f"void: {err}", style="red", markup=False)
            return 1
    show(console, found, given.rate)
    if given.json:
        given.json.write_text(json.dumps([asdict(each) | {"cpu": each.cpu} for each in found]))
    return 0


def _on_a_broker(root: Path, given: argparse.Namespace, console: Console) -> list[More]:
    settings = replace(from_environment(), root=root, kafka={}, bootstrap_servers="")
    with topic.brokers(settings) as servers, spark_session.opened(settings, "one_more") as spark:
        stage = Stage(spark, root, one_more_tables, bootstrap_servers=servers)
        kafka_broker.ensure_topics(stage.session.settings, {TOPIC: 2}, topic.TOPIC)

        def say(text: str) -> None:
            console.log(text, highlight=False, markup=False)

        return run(stage, given.rate, given.seconds, given.only, say)


if __name__ == "__main__":
    sys.exit(main())
