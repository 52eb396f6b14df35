"""What was measured as values, as a table for people and as JSON; and the targets, met or not."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from operator import truediv
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.bank import Bank
from benchmarks.beside import Beside
from benchmarks.by_key import ByKey
from benchmarks.commits import FEW, Aged
from benchmarks.late_rows import UPDATED, WITHOUT
from benchmarks.latency import Latency
from benchmarks.measure import Cost
from benchmarks.publishing import Published
from benchmarks.reconciling import Reconciling
from benchmarks.recovery import Recovery
from benchmarks.rescale import Rescaled
from benchmarks.savepoint import Saved
from benchmarks.start import Started
from benchmarks.state import State
from benchmarks.upgrade import Upgraded

_THROUGHPUT = {
    ("catch-up", "hand-written"): 1.2,
    ("catch-up", "hand-tuned"): 0.95,
    ("batch", "plain batch"): 0.95,
    ("late", WITHOUT): 0.97,
    ("avro", "JSON"): 1.0,
}
_PUBLISHED = {"Kafka": 0.5, "PostgreSQL": 1.0}  # seconds from a commit to its rows in the target
_LATENCY = 3.0
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


@dataclass(frozen=True, slots=True)
class Target:
    text: str
    value: float
    limit: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


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


def targets(measured: Found) -> list[Target]:
    """The targets of what was measured; throughput by the clock and, steadier on a busy machine, by CPU."""
    by_name = {(s.group, s.name): s for s in measured.series}
    found = []
    for (group, other), limit in _THROUGHPUT.items():
        if (group, other) in by_name:
            ours, theirs = by_name[group, "ours"], by_name[group, other]
            found.append(Target(f"{group}: events/s, ours / {other}", ratio(ours, theirs), limit))
            found.append(
                Target(
                    f"{group}: events per CPU second, ours / {other}",
                    cpu_ratio(ours, theirs),
                    limit,
                )
            )
    if {("batch", "ours"), ("catch-up", "ours")} <= by_name.keys():
        rates = (median(by_name[group, "ours"].rates()) for group in ("batch", "catch-up"))
        found.append(Target("batch: events/s, backfill / live catch-up", truediv(*rates), 3))
    if ("late", UPDATED) in by_name:
        ours, late = by_name["late", "ours"], by_name["late", UPDATED]
        found.append(
            Target(f"late: events/s, {UPDATED} / ours with nothing late", ratio(late, ours), 0.75)
        )
        found.append(
            Target(
                f"late: events per CPU second, {UPDATED} / ours with nothing late",
                cpu_ratio(late, ours),
                0.75,
            )
        )
    for each in measured.latencies:
        if each.name == "ours":
            found.append(
                Target(
                    "live: median seconds past window end + delay",
                    each.p50,
                    _LATENCY,
                    at_least=False,
                )
            )
    for each in measured.states:
        if each.name == "advancing":
            found.append(
                Target(
                    "state: rows in the second half of the run / in the first",
                    each.growth,
                    1.1,
                    at_least=False,
                )
            )
        else:
            found.append(
                Target("state: bytes of it / bytes of memory given to it", each.beyond_memory, 2)
            )
    for each in measured.recoveries:
        found.append(
            Target(
                "recovery: median seconds from kill -9 to a commit", each.p50, 20, at_least=False
            )
        )
    for each in measured.starts:
        found.append(
            Target(
                "start: median seconds from `lakehouse demo` to a gold row",
                median(each.gold),
                45,
                at_least=False,
            )
        )
        found.append(
            Target(
                "start: median seconds from `lakehouse demo` to all of it",
                median(each.demo),
                75,
                at_least=False,
            )
        )
    for each in measured.published:
        if limit := _PUBLISHED.get(each.name):
            what = f"publish: to {each.name}, median seconds from a commit to its rows"
            found.append(Target(what, each.p50, limit, at_least=False))
            found.append(Target(f"publish: to {each.name}, rows/s, catching up", each.rate, 50_000))
    for each in measured.aged:
        many = f"after {each.micro_batches:,} micro-batches / after {FEW}"
        found.append(
            Target(f"commits: seconds of a micro-batch, {many}", each.commit, 1.2, at_least=False)
        )
        found.append(Target(f"commits: seconds of a read, {many}", each.read, 1.2, at_least=False))
    for each in measured.outcomes:
        found.append(
            Target(
                "reconciliation: seconds, reconciling / computing once",
                each.times,
                1.3,
                at_least=False,
            )
        )
        found.append(
            Target(
                "reconciliation: seconds of a tick with nothing changed",
                median(each.tick),
                5,
                at_least=False,
            )
        )
        found.append(
            Target("reconciliation: millions of rows a second into a digest", each.rate / 1e6, 3)
        )
    for each in measured.by_key:
        if each.name == "as-of":
            found.append(
                Target(
                    "as-of: seconds, joined as of each time / with the present",
                    each.times,
                    2,
                    at_least=False,
                )
            )
        else:
            found.append(Target("process: thousand events/s", each.rate / 1e3, 20))
    for each in measured.besides:
        found.append(
            Target(
                "beside: median delay while a day is backfilled / before",
                each.times,
                2,
                at_least=False,
            )
        )
    return [*found, *_of_changes(measured)]


def _of_changes(measured: Found) -> list[Target]:
    """Of changing a pipeline."""
    limits = [
        limit
        for each in measured.upgrades
        for limit in (
            ("upgrade: seconds in which a reader failed or saw wrong rows", each.wrong, 0),
            (
                "upgrade: seconds of the exchange itself, at worst",
                max(exchange.exchange for exchange in each.exchanges),
                1,
            ),
            ("upgrade: seconds, filling the version beside / a backfill", each.times, 1.2),
        )
    ]
    for each in measured.savepoints:
        limits += [
            (
                "savepoint: median seconds without a commit while it is created",
                median(each.paused),
                5,
            ),
            (
                "savepoint: median seconds from the restore to a commit",
                median(each.first),
                30,
            ),
        ]
    limits += [
        ("rescale: median seconds from the command to a commit", median(each.first), 30)
        for each in measured.rescales
    ]
    return [Target(*limit, at_least=False) for limit in limits]


def show(console: Console, measured: Found, goals: Sequence[Target]) -> None:
    """Prints everything; medians, and in brackets the least and the most of the rounds."""
    series, latencies = measured.series, measured.latencies
    for group in dict.fromkeys(s.group for s in series):
        console.print(_compared(group, [s for s in series if s.group == group]))
    if latencies:
        live = Table("live", title="seconds from window end + delay to readable rows")
        for column in ("windows", "median", "95 %", "worst", "cores busy"):
            live.add_column(column, justify="right")
        for each in latencies:
            numbers = (each.p50, each.p95, each.worst, each.cpu)
            live.add_row(each.name, str(len(each.windows)), *(f"{n:.2f}" for n in numbers))
        console.print(live)
    if measured.states:
        console.print(_states(measured.states))
    if measured.recoveries:
        console.print(_recovered(measured.recoveries))
    for each in measured.starts:
        console.print(
            f"start: {_range(each.job, '.1f')} s to a job's first commit; of the demo {_range(each.gold, '.1f')} s to a "
            f"gold row, {_range(each.demo, '.1f')} s to all of it; median (least-most)",
            highlight=False,
        )
    for each in measured.besides:
        console.print(
            f"beside: {median(each.alone):.2f} s of delay, {median(each.during):.2f} s (worst {max(each.during):.2f}) while "
            f"24 hours were backfilled in {each.seconds:.0f} s",
            highlight=False,
        )
    for each in measured.by_key:
        console.print(
            f"{each.name}: {each.rows:,} rows, {each.keys:,} keys or versions: {each.rate:,.0f} rows/s, {each.times:.2f} times "
            "the seconds of Spark's static join or windowed aggregate",
            highlight=False,
        )
    for each in measured.published:
        console.print(
            f"publish, {each.name}: {each.p50:.3f} s from a commit to its rows (95 % {each.p95:.3f}) of {len(each.delays)} "
            f"versions; {each.rate:,.0f} rows/s, catching up",
            highlight=False,
        )
    for each in measured.banks:
        console.print(
            f"bank: {each.transfers:,} transfers: {each.rate:,.0f}/s into the totals; each of {each.versions} versions adds "
            "up to zero",
            highlight=False,
        )
    if measured.aged:
        console.print(_aged(measured.aged))
    for line in _changes(measured):
        console.print(line, highlight=False)
    for goal in goals:
        verdict = "[green]met[/green]" if goal.met else "[red]not met[/red]"
        sign = "at least" if goal.at_least else "at most"
        console.print(
            f"{verdict}: {goal.text}: {goal.value:.2f} ({sign} {goal.limit:g})", highlight=False
        )


def _changes(measured: Found) -> Iterator[str]:
    for each in measured.upgrades:
        yield (
            f"upgrade: {each.events:,} events, {each.hours} h of event time: "
            f"{_range(each.fills, '.1f')} s to fill the version beside, {_range(each.backfills, '.1f')} s to backfill"
        )
        for exchange in each.exchanges:
            yield (
                f"upgrade, {exchange.command}: {exchange.exchange:.2f} s for the exchange, {exchange.still:.1f} s from the stop "
                "to a new row"
            )
        yield (
            f"upgrade: {each.looks:,} queries one after the other, {each.longest:.2f} s the longest, {each.wrong:.2f} s of them "
            f"wrong{''.join(f'; {error}' for error in each.errors)}"
        )
    for each in measured.savepoints:
        yield (
            f"savepoint: {each.keys:,} keys: {_range(each.created, '.1f')} s to create, at most {_range(each.paused, '.1f')} s "
            f"without a commit meanwhile, {_range(each.usual, '.1f')} s before; {_range(each.restored, '.1f')} s to restore, "
            f"{_range(each.first, '.1f')} s to a commit, {_range(each.all_tables, '.1f')} s to one of each table"
        )
    for each in measured.rescales:
        yield (
            f"rescale: {each.keys:,} keys: {_range(each.command, '.1f')} s of the command, {_range(each.first, '.1f')} s to a "
            f"commit, {_range(each.all_tables, '.1f')} s to one of each table"
        )


def _compared(group: str, series: Sequence[Series]) -> Table:
    others = [s for s in series if s.name != "ours"]
    table = Table(group, title=f"{group}: median (least - most) of {len(series[0].rounds)} rounds")
    ratios = [f"{what} : {s.name}" for s in others for what in ("events/s", "events/CPU s")]
    for column in ("events/s", "CPU s / M events", *ratios, "start-up s"):
        table.add_column(column, justify="right")
    for each in series:
        against = [f"{of(each, other):.2f}" for other in others for of in (ratio, cpu_ratio)]
        start = f"{median(cost.wall for cost in each.fixed):.1f}"
        table.add_row(
            each.name, _range(each.rates(), ",.0f"), _range(each.cpu(), ".2f"), *against, start
        )
    return table


def _states(states: Sequence[State]) -> Table:
    table = Table("state", title="state of a table's streaming query; every key counted once")
    for column in (
        "keys",
        "rows at most",
        "2nd half / 1st",
        "MB on disk",
        "MB of RocksDB",
        "MB of the JVM",
        "keys/s",
    ):
        table.add_column(column, justify="right")
    for each in states:
        sizes = (f"{size / (1 << 20):,.0f}" for size in (each.files, each.memory, each.resident))
        table.add_row(
            each.name,
            f"{each.keys:,}",
            f"{max(each.rows):,}",
            f"{each.growth:.2f}",
            *sizes,
            f"{each.keys / each.seconds:,.0f}",
        )
    return table


def _recovered(recoveries: Sequence[Recovery]) -> Table:
    table = Table("recovery", title="seconds from kill -9 of the streaming job")
    for column in (
        "kills",
        "to another process",
        "to running queries",
        "to a commit: median",
        "worst",
    ):
        table.add_column(column, justify="right")
    for each in recoveries:
        times = (median(each.started), median(each.running), each.p50, max(each.committed))
        table.add_row("ads", str(len(each.committed)), *(f"{t:.1f}" for t in times))
    return table


def _aged(aged: Sequence[Aged]) -> Table:
    table = Table("micro-batches before", title="seconds, medians")
    for column in ("a micro-batch", "a read of the last hundred"):
        table.add_column(column, justify="right")
    for each in aged:
        for before, commits, reads in zip(
            (FEW, each.micro_batches), each.commits, each.reads, strict=True
        ):
            table.add_row(f"{before:,}", f"{median(commits):.3f}", f"{median(reads):.3f}")
    return table


def as_json(measured: Found, goals: Sequence[Target], about: dict) -> dict:
    return {
        "about": about,
        "series": [
            asdict(s) | {"events_per_second": s.rates(), "cpu_s_per_million": s.cpu()}
            for s in measured.series
        ],
        "live": [
            asdict(each) | {"p50": each.p50, "p95": each.p95, "max": each.worst}
            for each in measured.latencies
        ],
        "state": [asdict(each) for each in measured.states],
        "recovery": [asdict(each) for each in measured.recoveries],
        "start": [asdict(each) for each in measured.starts],
        "commits": [asdict(each) for each in measured.aged],
        "by_key": [asdict(each) | {"times": each.times} for each in measured.by_key],
        "banks": [asdict(each) | {"rate": each.rate} for each in measured.banks],
        "published": [
            asdict(each) | {"p50": each.p50, "p95": each.p95} for each in measured.published
        ],
        "beside": [asdict(each) for each in measured.besides],
        "upgrade": [asdict(each) | {"times": each.times} for each in measured.upgrades],
        "savepoint": [asdict(each) for each in measured.savepoints],
        "rescale": [asdict(each) for each in measured.rescales],
        "outcomes": [
            asdict(each) | {"times": each.times, "rate": each.rate} for each in measured.outcomes
        ],
        "targets": [asdict(goal) | {"met": goal.met} for goal in goals],
    }


def _range(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})"
