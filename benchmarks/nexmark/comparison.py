"""The queries of Nexmark, ours beside streams of Spark alone: events a second while each catches up, then seconds of a step."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks import measure
from lakehouse.settings import Settings, to_environment

LIMIT = 14_400.0  # seconds


@dataclass(frozen=True, slots=True)
class Size:
    """How many events there are before the first query starts, and how many steps of how many each query then takes."""

    events: int = 100_000
    steps: int = 3
    step: int = 1_000


QUICK = Size(2_000, 2, 100)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a query, which runs alone: seconds to catch up with so many events of all topics, and of each step then."""

    events: int
    catch_up: float
    steps: Sequence[float]

    @property
    def rate(self) -> float:
        return self.events / self.catch_up


@dataclass(frozen=True, slots=True)
class Query:
    """One table; `spark` is None where Spark has no such stream, and `cannot` says why."""

    name: str
    rows: int  # of our table, in the end
    ours: Side
    spark: Side | None = None
    cannot: str = ""

    @property
    def times(self) -> float | None:
        """How many times the events a second of Spark's."""
        return self.ours.rate / self.spark.rate if self.spark else None


def run(base: Settings, size: Size, only: Sequence[str] = ()) -> list[Query]:
    """All of them, or those named, in one process of its own.

    Raises BenchmarkError if a table is not EQUAL to its batch run in the end, or a stream of Spark's has
    other rows than ours.
    """
    result = base.root / "nexmark.json"
    numbers = [str(each) for each in (size.events, size.steps, size.step)]
    command = [sys.executable, "-m", "benchmarks.nexmark.run", *numbers, str(result), *only]
    measure.run(command, to_environment(base), base.root / "nexmark.log", LIMIT)
    return [
        Query(
            **each
            | {"ours": Side(**each["ours"]), "spark": each["spark"] and Side(**each["spark"])}
        )
        for each in json.loads(result.read_text())
    ]


def show(console: Console, found: Sequence[Query]) -> None:
    """Prints a line for each query, and why Spark has none of some."""
    least, most = (bound(each.ours.events for each in found) for bound in (min, max))
    table = Table(
        "nexmark",
        title=f"{least:,} to {most:,} events: ours, and a stream of Spark alone; a step: median (greatest)",
    )
    for column in ("events/s", "Spark's", "ours : Spark's", "a step, s", "Spark's", "rows"):
        table.add_column(column, justify="right")
    for each in found:
        sides = (each.ours, each.spark)
        rates = [f"{side.rate:,.0f}" if side else "–" for side in sides]
        times = f"{each.times:.2f}" if each.times else "–"
        table.add_row(each.name, *rates, times, *map(_step, sides), f"{each.rows:,}")
    console.print(table)
    for line in _without_spark(found):
        console.print(line, highlight=False, markup=False)


def _step(side: Side | None) -> str:
    return f"{median(side.steps):.2f} ({max(side.steps):.2f})" if side and side.steps else "–"


def _without_spark(found: Sequence[Query]) -> Iterator[str]:
    for why in dict.fromkeys(each.cannot for each in found if each.cannot):
        names = ", ".join(each.name for each in found if each.cannot == why)
        yield f"Spark has no stream for {names}: {why}"
