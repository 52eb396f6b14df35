"""The rounds of catch-up and batch: in each round every case in turn, so that a slow minute hits all alike."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from benchmarks import batch, catch_up, late_rows, reconciling, topic
from benchmarks.catch_up import CASES, OURS, Case
from benchmarks.reconciling import Reconciling
from benchmarks.results import Series
from benchmarks.topic import Load, Views
from lakehouse.settings import Settings

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Field:
    """Filled topics, each on a broker of its own, and what is in them; the last has all events."""

    base: Settings
    servers: dict[Load, str]
    expected: Views
    say: Say

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(self.servers)

    def settings(self, name: str, load: Load) -> Settings:
        """Those of a run: a root of its own, the broker with that load."""
        return replace(self.base, root=self.base.root / name, bootstrap_servers=self.servers[load])


@contextmanager
def field(base: Settings, loads: Sequence[Load], say: Say) -> Iterator[Field]:
    """Brokers and topics, which end with the block."""
    expected = loads[-1].expected()
    say(f"{len(expected):,} counts expected of {loads[-1].sent:,} events")
    with ExitStack() as stack:
        servers = {}
        for load in loads:
            settings = replace(
                base, root=base.root / f"topic_{load.events}_{load.workload.late_share:g}"
            )
            servers[load] = stack.enter_context(topic.brokers(settings))
            topic.fill(replace(settings, bootstrap_servers=servers[load]), load)
            say(f"{load.sent:,} events in the topic")
        yield Field(base, servers, expected, say)


def catch_ups(ground: Field, rounds: int, cases: Sequence[Case] = CASES) -> list[Series]:
    """Each case, `rounds` times. Raises BenchmarkError."""
    *_, big = ground.loads
    found = {
        (case, load): Series(
            f"catch-up{'' if load is big else ' of half as many'}",
            case.name,
            load.sent - load.batch,
        )
        for load in reversed(ground.loads)
        for case in cases
    }
    for number in range(rounds):
        for (case, load), series in found.items():
            settings = ground.settings("catch-up", load)
            start_up, spent = catch_up.run(case, settings, load, ground.expected)
            shutil.rmtree(settings.root)
            series.add(spent, start_up)
            ground.say(f"round {number + 1}, {series.told()}")
    return list(found.values())


def lates(ground: Field, late: Field, batches: int, rounds: int) -> list[Series]:
    """Our job with the bookkeeping of lateness and without it; and with late rows that are brought in. Raises BenchmarkError."""
    load, of_late = ground.loads[-1], late.servers[late.loads[-1]]
    settings = ground.settings("late", load)
    costs = late_rows.run(settings, load, batches, rounds, of_late)
    shutil.rmtree(settings.root)
    found = [Series("late", name, load.sent) for name in costs]
    for series in found:
        for cost in costs[series.name]:
            series.add(cost)
            ground.say(series.told())
    return found


def batches(ground: Field, rounds: int, times: int) -> list[Series]:
    """Our backfill and the plain job over the record of one catch-up, `rounds` times. Raises BenchmarkError."""
    big = ground.loads[-1]
    settings = ground.settings("batch", big)
    catch_up.run(OURS, settings, big, ground.expected)
    ground.say("record filled for the batch runs")
    found = {name: Series("batch", name, batch.events(big)) for name in batch.MODULES}
    for number in range(rounds):
        for name, series in found.items():
            first, later = batch.run(name, settings, ground.expected, times)
            series.add(later, first - later)
            ground.say(f"round {number + 1}, {series.told()}")
    shutil.rmtree(settings.root)
    return list(found.values())


def outcomes(ground: Field, times: int) -> Reconciling:
    """The reconciliation over the record and the table of one catch-up. Raises BenchmarkError."""
    big = ground.loads[-1]
    settings = ground.settings("reconcile", big)
    catch_up.run(OURS, settings, big, ground.expected)
    ground.say("record filled for the reconciliation")
    found = reconciling.run(settings, times)
    shutil.rmtree(settings.root)
    return found
