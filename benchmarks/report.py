"""What was measured, as a table for people and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.commits import FEW, Aged
from benchmarks.nexmark import comparison as nexmark
from benchmarks.recovery import Recovery
from benchmarks.results import Found, Series, cpu_ratio, ratio
from benchmarks.state import State
from benchmarks.targets import Target


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
    for line in _lines(measured):
        console.print(line, highlight=False)
    if measured.nexmark:
        nexmark.show(console, measured.nexmark)
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


def _lines(measured: Found) -> Iterator[str]:
    for each in measured.starts:
        yield (
            f"start: {_range(each.job, '.1f')} s to a job's first commit; of the demo {_range(each.gold, '.1f')} s to a "
            f"gold row, {_range(each.demo, '.1f')} s to all of it; median (least-most)"
        )
    for each in measured.besides:
        yield (
            f"beside: {median(each.alone):.2f} s of delay, {median(each.during):.2f} s (worst {max(each.during):.2f}) while "
            f"24 hours were backfilled in {each.seconds:.0f} s"
        )
    for each in measured.by_key:
        yield (
            f"{each.name}: {each.rows:,} rows, {each.keys:,} keys or versions: {each.rate:,.0f} rows/s, {each.times:.2f} times "
            "the seconds of Spark's static join or windowed aggregate"
        )
    for each in measured.published:
        yield (
            f"publish, {each.name}: {each.p50:.3f} s from a commit to its rows (95 % {each.p95:.3f}) of {len(each.delays)} "
            f"versions; {each.rate:,.0f} rows/s, catching up"
        )
    for lag in measured.lags:
        yield (
            f"{lag.name}: {lag.p50:.2f} s from {lag.of} (95 % {lag.p95:.2f}, worst {lag.worst:.2f}) of {len(lag.delays):,}; "
            f"{lag.cpu:.2f} cores busy"
        )
    for each in measured.banks:
        yield (
            f"bank: {each.transfers:,} transfers: {each.rate:,.0f}/s into the totals; each of {each.versions} versions adds "
            "up to zero"
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
            f"commit, {_range(each.all_tables, '.1f')} s to one of each table; {_range(each.still, '.1f')} s from the stop to a "
            "commit"
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
    table = Table("micro-batches before", title="CPU seconds, medians")
    for column in ("versions in the log", *aged[0].cpu):
        table.add_column(column, justify="right")
    for each in aged:
        for place, before in enumerate((FEW, each.micro_batches)):
            spent = (f"{median(pair[place]):.3f}" for pair in each.cpu.values())
            table.add_row(f"{before:,}", f"{each.logged[place]:,}", *spent)
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
        "lag": [asdict(lag) | {"p50": lag.p50, "p95": lag.p95} for lag in measured.lags],
        "beside": [asdict(each) for each in measured.besides],
        "upgrade": [asdict(each) | {"times": each.times} for each in measured.upgrades],
        "savepoint": [asdict(each) for each in measured.savepoints],
        "rescale": [asdict(each) for each in measured.rescales],
        "nexmark": [asdict(each) | {"times": each.times} for each in measured.nexmark],
        "outcomes": [
            asdict(each) | {"times": each.times, "rate": each.rate} for each in measured.outcomes
        ],
        "targets": [asdict(goal) | {"met": goal.met} for goal in goals],
    }


def _range(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})"
