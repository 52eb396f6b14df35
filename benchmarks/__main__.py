"""`python -m benchmarks`, also `make bench`: measures, checks every count, prints a table and which targets are met.

Exit codes: 0 measured (the table says which targets are met), 1 a run failed or gave a wrong count: all of it is void.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import (
    avro,
    bank,
    beside,
    by_key,
    cdc,
    commits,
    late_rows,
    latency,
    publishing,
    recovery,
    report,
    rescale,
    savepoint,
    shopping,
    start,
    state,
    throughput,
    topic,
    upgrade,
)
from benchmarks.catch_up import CASES
from benchmarks.lag import Lag
from benchmarks.latency import Latency
from benchmarks.measure import BenchmarkError
from benchmarks.nexmark import comparison as nexmark
from benchmarks.reconciling import Reconciling
from benchmarks.results import Found, Series
from benchmarks.targets import targets
from lakehouse.cli.console import out
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, from_environment

QUICK = (
    "catch-up",
    "batch",
    "reconcile",
    "late",
    "avro",
    "state",
    "by-key",
    "live",
)
LONG = (  # no part of the quick run
    "bank",
    "visits",
    "beside",
    "recovery",
    "start",
    "publish",
    "cdc",
    "shop",
    "upgrade",
    "savepoint",
    "rescale",
    "nexmark",
    "commits",
)
PARTS = (*QUICK, *LONG)


def main() -> int:
    given = _arguments()
    console = out()
    about = _about(given)
    with tempfile.TemporaryDirectory(prefix="lakehouse-bench-", dir=given.work) as work:
        # resolved: brokers and jobs have working directories of their own
        base = replace(
            from_environment(), root=Path(work).resolve(), kafka={}, bootstrap_servers=""
        )
        try:
            found = _measured(base, given, console)
        except (BenchmarkError, LakehouseError) as err:
            console.print(f"void: {err}", style="red", markup=False)
            return 1
    goals = targets(found)
    report.show(console, found, goals)
    if given.json:
        given.json.write_text(json.dumps(report.as_json(found, goals, about), indent=1))
    return 0


def _measured(base: Settings, given: argparse.Namespace, console: Console) -> Found:
    def say(text: str) -> None:
        console.log(text, highlight=False, markup=False)

    series: list[Series] = []
    latencies: list[Latency] = []
    outcomes: list[Reconciling] = []
    if {"catch-up", "batch", "reconcile", "late"} & set(given.only):
        sizes = slice(1 if given.quick else 0, None)
        with throughput.field(base, topic.loads(given.events, given.batches)[sizes], say) as ground:
            if "catch-up" in given.only:
                series += throughput.catch_ups(
                    ground, given.rounds, CASES[:-1] if given.quick else CASES
                )
            if "batch" in given.only:
                series += throughput.batches(ground, given.rounds, given.times)
            if "reconcile" in given.only:
                outcomes.append(throughput.outcomes(ground, given.times))
            if "late" in given.only:
                loads = topic.loads(given.events, given.batches, late_rows.SHARE)
                with throughput.field(base, loads[-1:], say) as late:
                    series += throughput.lates(ground, late, given.batches, given.rounds)
    if "avro" in given.only:
        if lacking := avro.missing():
            say(lacking)
        else:
            rows = given.events // 5
            series += avro.run(replace(base, root=base.root / "avro"), rows, given.rounds)
    runs = [latency.ours, latency.by_hand] if "live" in given.only else []
    runs += [latency.visits] if "visits" in given.only else []
    for run in runs[:1] if given.quick else runs:
        latencies.append(run(replace(base, root=base.root / f"live_{run.__name__}"), given.seconds))
        say(f"live, {latencies[-1].name}: median {latencies[-1].p50:.2f} s")
    states = state.run(base, given.keys, given.advances) if "state" in given.only else []
    by_keys = partial(by_key.run, replace(base, root=base.root / "by_key"), given.keys, given.times)
    keyed = by_keys() if "by-key" in given.only else []
    banks = (
        [bank.run(replace(base, root=base.root / "bank"), given.events)]
        if "bank" in given.only
        else []
    )
    killed = replace(base, root=base.root / "recovery")
    recoveries = [recovery.run(killed, given.kills)] if "recovery" in given.only else []
    aged = [commits.run(base, given.micro_batches, given.every)] if "commits" in given.only else []
    besides = (
        [beside.run(replace(base, root=base.root / "beside"), given.seconds)]
        if "beside" in given.only
        else []
    )
    starts = (
        [start.run(replace(base, root=base.root / "start"), given.rounds)]
        if "start" in given.only
        else []
    )
    published = (
        publishing.run(
            replace(base, root=base.root / "publish"), given.seconds, given.events // 20, say
        )
        if "publish" in given.only
        else []
    )
    found = Found(
        series,
        latencies,
        states,
        recoveries,
        aged,
        outcomes,
        besides,
        keyed,
        banks,
        starts,
        published,
    )
    house = replace(base, root=base.root / "nexmark")
    queries = nexmark.run(house, given.house) if "nexmark" in given.only else []
    lags = _lags(base, given, say)
    return replace(found, **_changes(base, given), nexmark=queries, lags=lags)


def _lags(base: Settings, given: argparse.Namespace, say: Callable[[str], None]) -> list[Lag]:
    """What is asked for of how far something is behind."""
    lags = []
    asked = [part for part in ("cdc", "shop") if part in given.only]
    if "cdc" in asked and (lacking := cdc.missing(base)):
        say(lacking)
        asked.remove("cdc")
    for part in asked:
        run = {"cdc": cdc.run, "shop": shopping.run}[part]
        lags.append(run(replace(base, root=base.root / part), given.seconds))
        say(f"{part}: median {lags[-1].p50:.2f} s")
    return lags


def _changes(base: Settings, given: argparse.Namespace) -> dict[str, list]:
    """What is asked for of changing a pipeline."""
    of_keys = (given.keys, given.rounds)
    runs = {
        "upgrade": lambda of: upgrade.run(of, given.hours, given.past_rate, given.rounds),
        "savepoint": lambda of: savepoint.run(of, *of_keys),
        "rescale": lambda of: rescale.run(of, *of_keys),
    }
    return {
        f"{part}s": [run(replace(base, root=base.root / part))]
        for part, run in runs.items()
        if part in given.only
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--events", type=int, default=10_000_000, help="in the larger topic; the smaller has half"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds",
        type=int,
        default=240,
        help="of the live stream; the first two minutes do not count",
    )
    parser.add_argument(
        "--times", type=int, default=4, help="calls of the batch job in one process"
    )
    parser.add_argument("--keys", type=int, default=1_000_000, help="in state at once")
    parser.add_argument(
        "--hours", type=int, default=1, help="of 5,000 events a second behind an upgrade"
    )
    parser.add_argument(
        "--micro-batches", type=int, default=10_000, help="of a table that has many behind it"
    )
    parser.add_argument(
        "--every", type=float, default=6, help="seconds of arrival between two of them"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=PARTS[:-1],
        help="commits, more than an hour, by name only",
    )
    parser.add_argument(
        "--quick", action="store_true", help="see that it works: small, one round, no claims"
    )
    parser.add_argument("--json", type=Path, help="file for all numbers")
    parser.add_argument(
        "--work", type=Path, help="folder for topics and tables; emptied at the end"
    )
    given = parser.parse_args()
    given.batches, given.advances, given.kills = 10, 150, 10
    given.past_rate, given.house = latency.RATE, nexmark.Size()
    if given.quick:
        given.events, given.batches, given.rounds, given.seconds, given.times = 100_000, 2, 1, 35, 2
        given.keys, given.advances, given.kills, given.past_rate = 20_000, 20, 1, 20
        given.house = nexmark.QUICK
        given.only = [part for part in given.only if part not in LONG] or given.only
    return given


def _about(given: argparse.Namespace) -> dict[str, object]:
    return {
        "at": datetime.now(UTC).isoformat(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": os.getloadavg(),
        "events": given.events,
        "rounds": given.rounds,
    }


if __name__ == "__main__":
    sys.exit(main())
