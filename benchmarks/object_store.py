"""A root in an S3 server beside one on a disk: the same job, then the same commands; requests are counted by the server.

    python -m benchmarks.object_store [--rate 200] [--seconds 60] [--delay 0]    # seconds more for each request

The job of `sensors`, with its supervision, on a real broker. The S3 server (moto, in memory, one process of Python) runs on the
same machine behind a proxy that counts, so that seconds are an upper bound, and requests are exact. Exit code 1 if a row is
missing in the end: then the numbers are void.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table as Shown

from benchmarks import commands, latency, s3_server, topic
from benchmarks.measure import BenchmarkError
from lakehouse.declare import catalog
from lakehouse.examples.sensors import producer as sensors
from lakehouse.producers.sender import send
from lakehouse.runtime import kafka_broker
from lakehouse.runtime.kafka_options import client_config
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.log.commit_log import CommitLog

_TABLES = ("sensor_readings", "valid_readings", "sensor_averages")
_PRICES = {
    "PUT": 5.0,
    "POST": 5.0,
    "GET list": 5.0,
}  # dollars a million requests of S3 Standard; others 0.4
_MONTH = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of commands, cores busy, commits, and requests while rows come and while none come."""

    seconds: Mapping[str, float]
    cores: float
    commits: int
    busy: Counter[str]
    idle: Counter[str]
    within: float  # seconds that both were counted
    asked: Mapping[str, Counter[str]]  # requests of each command


def measured(settings: Settings, faults: s3_server.Faults, rate: int, within: int) -> Measured:
    """Runs the job with so many events a second. Raises BenchmarkError if a row is missing."""
    seconds, asked = dict[str, float](), dict[str, Counter[str]]()
    workload = replace(sensors.PRODUCER.workload, rate=rate, late_share=0.0, malformed_share=0.0)
    with topic.brokers(settings) as servers:
        settings = replace(settings, bootstrap_servers=servers)
        kafka_broker.ensure_topics(
            settings, {sensors.PRODUCER.topic: workload.partitions}, topic.TOPIC
        )
        begun = time.monotonic()
        with latency.our_job(settings, "sensors") as tree:
            seconds["start of the job"] = time.monotonic() - begun
            _send(settings, workload, 30)
            cpu, commits = tree.cpu(), _commits(settings)
            faults.clear()
            sent = 30 * rate + _send(settings, workload, within)
            cores, busy = (tree.cpu() - cpu) / within, faults.requests
            commits = _commits(settings) - commits
            time.sleep(15)  # what was sent is through all tables
            faults.clear()
            time.sleep(within)
            idle = faults.requests
        for words in (("table", "list"), ("query", "SELECT count(*) AS n FROM sensor_readings")):
            commands.run(settings, *words)  # caches are filled
            faults.clear()
            seconds[words[0] + words[1][:5]] = commands.run(settings, *words).seconds
            asked[words[0]] = faults.requests
        found = commands.run(
            settings, "query", "--json", "SELECT count(*) AS n FROM sensor_readings"
        )
        if str(sent) not in found.output:
            raise BenchmarkError(f"sensor_readings: {found.output} rows of {sent} sent; void")
    return Measured(seconds, cores, commits, busy, idle, within, asked)


def _send(settings: Settings, workload, seconds: int) -> int:
    now = int(time.time() * 1000)
    records = sensors.PRODUCER.records(workload, now, now + seconds * 1000)
    return send(records, sensors.PRODUCER.topic, client_config(settings)).sent


def _commits(settings: Settings) -> int:
    known = catalog.load(settings)
    return sum(len(list(CommitLog(settings, known.table(n)).by_stream())) for n in _TABLES)


def price(requests: Mapping[str, int], seconds: float) -> float:
    """Returns dollars a month of so many requests in so many seconds, by the prices of S3 Standard."""
    dollars = sum(
        count * _PRICES.get(kind, _PRICES.get(kind.split()[0], 0.4)) / 1e6
        for kind, count in requests.items()
    )
    return dollars / seconds * _MONTH


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--delay", type=float, default=0.0)
    given, console = parser.parse_args(), Console()
    faults = s3_server.Faults(delay=given.delay)
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="lakehouse-bench-")))
        opened.enter_context(s3_server.running(faults))
        base = replace(
            from_environment(required=False),
            tables=("lakehouse.examples.sensors.tables",),
            local=folder / "local",
        )
        try:
            runs = {
                name: measured(replace(base, root=root), faults, given.rate, given.seconds)
                for name, root in {"disk": folder / "root", "S3": s3_server.folder("root")}.items()
            }
        except BenchmarkError as err:
            console.print(f"void: {err}", style="red", markup=False)
            return 1
    disk, store = runs["disk"], runs["S3"]
    shown = Shown("", "disk", "S3", "S3 / disk")
    for name in disk.seconds:
        ours, theirs = store.seconds[name], disk.seconds[name]
        shown.add_row(f"seconds: {name}", f"{theirs:.1f}", f"{ours:.1f}", f"{ours / theirs:.2f}")
    shown.add_row(
        "cores busy", f"{disk.cores:.2f}", f"{store.cores:.2f}", f"{store.cores / disk.cores:.2f}"
    )
    shown.add_row("commits", str(disk.commits), str(store.commits), "")
    console.print(shown)
    for name, requests in (("with rows", store.busy), ("without rows", store.idle)):
        total = sum(requests.values())
        console.print(
            f"{name}: {total} requests in {store.within:.0f} s"
            + (f", {total / store.commits:.1f} a commit" if name == "with rows" else "")
            + f"; {price(requests, store.within):.2f} dollars a month; {dict(requests.most_common(12))}"
        )
    for name, requests in store.asked.items():
        console.print(f"{name}: {sum(requests.values())} requests; {dict(requests.most_common(8))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
