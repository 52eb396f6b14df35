"""What was measured, as values: rounds of a case, and all parts together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.bank import Bank
from benchmarks.beside import Beside
from benchmarks.by_key import ByKey
from benchmarks.commits import Aged
from benchmarks.lag import Lag
from benchmarks.latency import Latency
from benchmarks.measure import Cost
from benchmarks.nexmark.comparison import Query
from benchmarks.publishing import Published
from benchmarks.reconciling import Reconciling
from benchmarks.recovery import Recovery
from benchmarks.rescale import Rescaled
from benchmarks.savepoint import Saved
from benchmarks.start import Started
from benchmarks.state import State
from benchmarks.upgrade import Upgraded

NOTHING = Cost(0, 0)


@dataclass(slots=True)
class Series:
    """The rounds of one case: what `events` of them cost, start-up taken out."""

    group: str
    name: str
    events: int
    rounds: list[Cost] = field(default_factory=list)
    fixed: list[Cost] = field(default_factory=list)  # what was taken out

    def add(self, spent: Cost, start_up: Cost = NOTHING) -> None:
        """One more round."""
        self.rounds.append(spent)
        self.fixed.append(start_up)

    def rates(self) -> list[float]:
        """Events per second; where so few took no time that a look could see, absurdly many."""
        return [self.events / max(cost.wall, 1e-3) for cost in self.rounds]

    def cpu(self) -> list[float]:
        """CPU seconds per million events."""
        return [max(cost.cpu, 1e-3) / self.events * 1e6 for cost in self.rounds]

    def told(self) -> str:
        """The last round in words."""
        return f"{self.group}, {self.name}: {self.rates()[-1]:,.0f} events/s, {self.cpu()[-1]:.2f} CPU s / M events"


def ratio(ours: Series, other: Series) -> float:
    """How many times the events/s: the median over rounds, each compared with its neighbour in time."""
    return median(a / b for a, b in zip(ours.rates(), other.rates(), strict=True))


def cpu_ratio(ours: Series, other: Series) -> float:
    """The same by CPU: the events that a CPU second does, in ours against the other."""
    return median(b / a for a, b in zip(ours.cpu(), other.cpu(), strict=True))


@dataclass(frozen=True, slots=True)
class Found:
    """All that was measured."""

    series: Sequence[Series] = ()
    latencies: Sequence[Latency] = ()
    states: Sequence[State] = ()
    recoveries: Sequence[Recovery] = ()
    aged: Sequence[Aged] = ()
    outcomes: Sequence[Reconciling] = ()
    besides: Sequence[Beside] = ()
    by_key: Sequence[ByKey] = ()
    banks: Sequence[Bank] = ()
    starts: Sequence[Started] = ()
    published: Sequence[Published] = ()
    upgrades: Sequence[Upgraded] = ()
    savepoints: Sequence[Saved] = ()
    rescales: Sequence[Rescaled] = ()
    nexmark: Sequence[Query] = ()
    lags: Sequence[Lag] = ()
