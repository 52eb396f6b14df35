"""The rounds of catch-up and bounded: in each round every case in turn, so that a slow minute hits all alike."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from benchmarks import bounded, catch_up, late_rows, topic
from benchmarks.catch_up import CASES, OURS, Case
from benchmarks.measure import Cost
from benchmarks.report import Series
from benchmarks.topic import Load, Views
from lakehouse.settings import Settings

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Field:
    """Two filled topics, each on a broker of its own, and what is in them."""

    base: Settings
    servers: dict[Load, str]
    expected: Views
    say: Say

    @property
    def loads(self) -> tuple[Load, Load]:
        small, big = self.servers
        return small, big

    def settings(self, name: str, load: Load) -> Settings:
        """Those of a run: a root of its own, the broker with that load."""
        return replace(self.base, root=self.base.root / name, bootstrap_servers=self.servers[load])


@contextmanager
def field(base: Settings, events: int, batches: int, say: Say, late_share: float = 0.0) -> Iterator[Field]:
    """Brokers and topics, which end with the block; `batches`: micro-batches that the larger topic is read in."""
    small, big = topic.loads(events, batches, late_share)
    expected = big.expected()
    say(f"{len(expected):,} counts expected of {big.sent:,} events")
    with ExitStack() as stack:
        servers = {}
        for load in (small, big):
            settings = replace(base, root=base.root / f"topic_{load.events}_{late_share:g}")
            servers[load] = stack.enter_context(topic.brokers(settings))
            topic.fill(replace(settings, bootstrap_servers=servers[load]), load)
            say(f"{load.sent:,} events in the topic")
        yield Field(base, servers, expected, say)


def catch_ups(ground: Field, rounds: int) -> list[Series]:
    """Every case at both sizes, `rounds` times; a series holds the differences. Raises BenchmarkError."""
    small, big = ground.loads
    found = {case: Series("catch-up", case.name, big.events - small.events) for case in CASES}
    for number in range(rounds):
        for case, series in found.items():
            less, more = (_caught_up(ground, case, load) for load in (small, big))
            series.rounds.append(more - less)
            series.fixed.append(less - (more - less))  # the smaller topic has half of the events
            series.whole.append(more)
            ground.say(f"round {number + 1}, {series.told()}")
    return list(found.values())


def _caught_up(ground: Field, case: Case, load: Load) -> Cost:
    settings = ground.settings("catch_up", load)
    cost = catch_up.run(case, settings, load, ground.expected)
    shutil.rmtree(settings.root)
    return cost


def lates(ground: Field, late: Field, rounds: int) -> list[Series]:
    """Our job with the bookkeeping of lateness and without it; and with late rows that are brought in. Raises BenchmarkError."""
    expected = {load: load.expected() for load in late.loads}  # a late row may come after the smaller topic's end
    runs: dict[str, tuple[Field, Callable[[Settings, Load], Cost]]] = {
        OURS.name: (ground, lambda settings, load: catch_up.run(OURS, settings, load, ground.expected)),
        late_rows.WITHOUT.name: (ground, lambda settings, load: catch_up.run(late_rows.WITHOUT, settings, load, ground.expected)),
        late_rows.UPDATED: (late, lambda settings, load: late_rows.updated(settings, load, expected[load])),
    }
    found = {name: Series("late", name, ground.loads[1].events - ground.loads[0].events) for name in runs}
    for number in range(rounds):
        for name, (field, run) in runs.items():
            costs = []
            for load in field.loads:
                settings = field.settings("late", load)
                costs.append(run(settings, load))
                shutil.rmtree(settings.root)
            less, more = costs
            series = found[name]
            series.rounds.append(more - less)
            series.fixed.append(less - (more - less))
            series.whole.append(more)
            ground.say(f"round {number + 1}, {series.told()}")
    return list(found.values())


def boundeds(ground: Field, rounds: int, times: int) -> list[Series]:
    """Our backfill and the plain job over the record of one catch-up, `rounds` times. Raises BenchmarkError."""
    _, big = ground.loads
    settings = ground.settings("bounded", big)
    catch_up.run(OURS, settings, big, ground.expected)
    ground.say("record filled for the bounded runs")
    found = {name: Series("bounded", name, bounded.events(big)) for name in bounded.MODULES}
    for number in range(rounds):
        for name, series in found.items():
            first, later = bounded.run(name, settings, ground.expected, times)
            series.rounds.append(later)
            series.fixed.append(first - later)
            series.whole.append(first)
            ground.say(f"round {number + 1}, {series.told()}")
    shutil.rmtree(settings.root)
    return list(found.values())
