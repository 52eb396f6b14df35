"""The targets of what was measured, met or not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import truediv
from statistics import median

from benchmarks.commits import FEW
from benchmarks.late_rows import UPDATED, WITHOUT
from benchmarks.results import Found, Series, cpu_ratio, ratio

_THROUGHPUT = {
    ("catch-up", "hand-written"): 1.2,
    ("catch-up", "hand-tuned"): 0.95,
    ("batch", "plain batch"): 0.95,
    ("late", WITHOUT): 0.97,
    ("avro", "JSON"): 1.0,
}
_PUBLISHED = {"Kafka": 0.5, "PostgreSQL": 1.0}  # seconds from a commit to its rows in the target
_LATENCY = 3.0
_LAGS = {"cdc": 3.0}
Limit = tuple[str, float, float]  # what it is of, what was measured, the limit


@dataclass(frozen=True, slots=True)
class Target:
    text: str
    value: float
    limit: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def targets(measured: Found) -> list[Target]:
    """The targets of what was measured; throughput by the clock and, steadier on a busy machine, by CPU."""
    at_most = (*_of_streams(measured), *_of_tables(measured), *_of_changes(measured))
    return [
        *(Target(*limit) for limit in (*_of_throughput(measured.series), *_of_rates(measured))),
        *(Target(*limit, at_least=False) for limit in at_most),
    ]


def _of_throughput(series: Sequence[Series]) -> Iterator[Limit]:
    by_name = {(s.group, s.name): s for s in series}
    pairs = {
        (f"{group}:", f"ours / {other}"): (group, "ours", other, limit)
        for (group, other), limit in _THROUGHPUT.items()
    }
    pairs["late:", f"{UPDATED} / ours with nothing late"] = ("late", UPDATED, "ours", 0.75)
    for (what, compared), (group, one, other, limit) in pairs.items():
        if {(group, one), (group, other)} <= by_name.keys():
            both = by_name[group, one], by_name[group, other]
            yield f"{what} events/s, {compared}", ratio(*both), limit
            yield f"{what} events per CPU second, {compared}", cpu_ratio(*both), limit
    if {("batch", "ours"), ("catch-up", "ours")} <= by_name.keys():
        rates = (median(by_name[group, "ours"].rates()) for group in ("batch", "catch-up"))
        yield "batch: events/s, backfill / live catch-up", truediv(*rates), 3


def _of_rates(measured: Found) -> Iterator[Limit]:
    """What is to be at least so much."""
    for each in measured.states:
        if each.name != "advancing":
            yield "state: bytes of it / bytes of memory given to it", each.beyond_memory, 2
    for each in measured.published:
        if each.name in _PUBLISHED:
            yield f"publish: to {each.name}, rows/s, catching up", each.rate, 50_000
    for each in measured.outcomes:
        yield "reconciliation: millions of rows a second into a digest", each.rate / 1e6, 3
    for each in measured.by_key:
        if each.name != "as-of":
            yield "process: thousand events/s", each.rate / 1e3, 20


def _of_streams(measured: Found) -> Iterator[Limit]:
    for each in measured.latencies:
        if each.name == "ours":
            yield "live: median seconds past window end + delay", each.p50, _LATENCY
    for each in measured.recoveries:
        yield "recovery: median seconds from kill -9 to a commit", each.p50, 20
    for each in measured.starts:
        gold, everything = median(each.gold), median(each.demo)
        yield "start: median seconds from `lakehouse demo` to a gold row", gold, 45
        yield "start: median seconds from `lakehouse demo` to all of it", everything, 75
    for each in measured.published:
        if limit := _PUBLISHED.get(each.name):
            what = f"publish: to {each.name}, median seconds from a commit to its rows"
            yield what, each.p50, limit
    for lag in measured.lags:
        if limit := _LAGS.get(lag.name):
            yield f"{lag.name}: median seconds from {lag.of}", lag.p50, limit
    for each in measured.besides:
        yield "beside: median delay while a day is backfilled / before", each.times, 2


def _of_tables(measured: Found) -> Iterator[Limit]:
    for each in measured.states:
        if each.name == "advancing":
            yield "state: rows in the second half of the run / in the first", each.growth, 1.1
    for each in measured.aged:
        many = f"after {each.micro_batches:,} micro-batches / after {FEW}"
        for name, times in each.times.items():
            yield f"commits: CPU of {name}, {many}", times, 1.3 if "read" in name else 1.2
    for each in measured.outcomes:
        yield "reconciliation: seconds, reconciling / computing once", each.times, 1.3
        yield "reconciliation: seconds of a tick with nothing changed", median(each.tick), 5
    for each in measured.by_key:
        if each.name == "as-of":
            yield "as-of: seconds, joined as of each time / with the present", each.times, 2


def _of_changes(measured: Found) -> Iterator[Limit]:
    """Of changing a pipeline."""
    for each in measured.upgrades:
        slowest = max(exchange.exchange for exchange in each.exchanges)
        yield "upgrade: seconds in which a reader failed or saw wrong rows", each.wrong, 0
        yield "upgrade: seconds of the exchange itself, at worst", slowest, 1
        yield "upgrade: seconds, filling the version beside / a backfill", each.times, 1.2
    for each in measured.savepoints:
        paused, first = median(each.paused), median(each.first)
        yield "savepoint: median seconds without a commit while it is created", paused, 5
        yield "savepoint: median seconds from the restore to a commit", first, 30
    for each in measured.rescales:
        yield "rescale: median seconds from the command to a commit", median(each.first), 30
