"""The costs of a scale: measured functions of the product, a line through each, and the first wall at 10, 100 and 1,000 tables.

    python -m benchmarks.scale [--only catalog commands year wide dagster partitions process] [--json FILE]

A part calls the code of the product at sizes of seconds. Its cost at other sizes is read from the line a + b n through what
was measured. `process` starts Spark, and 500 tables in one process; the other parts need none. Exit code 1 if a part fails.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from math import log
from pathlib import Path
from statistics import linear_regression

import dagster as dg

from assets import location, partitions, sensors
from benchmarks import measure
from benchmarks.command_cpu import SCHEMA, certificate, declared, filled
from lakehouse.cli import table_status
from lakehouse.cli.console import print_rows
from lakehouse.declare.catalog import load as load_catalog
from lakehouse.declare.table import Table
from lakehouse.reconcile import coverage
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.delta import committer, delta_log, delta_writer, table_creation
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.lakehouse import Lakehouse, load
from lakehouse.storage.log.certificates import certify
from lakehouse.storage.log.commits import Commit, recorded
from lakehouse.watermarks import Holders
from streaming_jobs.board.facts import Facts

TABLES, PROCESS = (10, 100, 1_000), (10, 100, 500)
HOURS = (100, 1_000, 8_760)
PARTITIONS = 50_000
_ROUNDS = 20
_LIMIT = 900.0  # seconds of the process part
_CORES = 2
# seconds: a person's patience, a tick of a sensor in Dagster, the load of a code location (`assets/dagster.yaml`)
_PERSON, _SENSOR, _LOCATION = 10.0, 60.0, 600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """A quantity at the sizes that were measured.

    :param limit: the value that it must stay below, and `cause` what it grows with; 0 has none.
    """

    part: str
    name: str
    points: Mapping[int, float]
    limit: float = 0.0
    per: str = "tables"
    cause: str = ""

    @property
    def line(self) -> tuple[float, float]:
        """Returns a and b of a + b n."""
        if len(self.points) == 1:
            ((n, value),) = self.points.items()
            return 0.0, value / n
        slope, intercept = linear_regression(list(self.points), list(self.points.values()))
        return intercept, slope

    @property
    def power(self) -> float:
        """Returns the power of n by which the last two points grow: 1 of a line, 2 of a square."""
        (m, before), (n, after) = [*self.points.items()][-2:]
        return log(after / before) / log(n / m)

    def at(self, size: float) -> float:
        a, b = self.line
        return self.points.get(int(size), a + b * size)

    @property
    def wall(self) -> float | None:
        """Returns the size at which the line reaches the limit."""
        a, b = self.line
        return (self.limit - a) / b if self.limit and b > 0 else None


@contextmanager
def cpu(into: dict[int, float], size: int) -> Iterator[None]:
    """Adds the CPU seconds of this process to the points."""
    began = time.process_time()
    yield
    into[size] = time.process_time() - began


def catalog(base: Settings) -> Iterator[Cost]:
    loaded: dict[int, float] = {}
    for tables in TABLES:
        settings = declared(replace(base, root=base.root / f"{tables}"), tables)
        with cpu(loaded, tables):
            load_catalog(settings)
    cause = "`declare/catalog.py` imports and checks each declaration"
    yield Cost("catalog", "CPU s to load the declarations", loaded, _PERSON, cause=cause)


def commands(base: Settings) -> Iterator[Cost]:
    shown, first, again = dict[int, float](), dict[int, float](), dict[int, float]()
    for tables in TABLES:
        lakehouse = filled(replace(base, root=base.root / f"{tables}"), tables, 3)
        # copies the commits to `_commits`, as a job does all the time
        table_status.overview(lakehouse)
        with cpu(shown, tables):
            table_status.overview(lakehouse)
        facts = Facts(lakehouse, every=0)
        with cpu(first, tables):
            facts.since(0)
        with cpu(again, tables):
            facts.since(1)
    cause = "`cli/table_status.py` reads the logs and certificates of each table"
    yield Cost("commands", "CPU s of `table list`", shown, _PERSON, cause=cause)
    yield Cost("commands", "CPU s of the board's first look", first, _PERSON, cause=cause)
    cause = "`board/facts.py` asks for the changes of each table"
    yield Cost("commands", "CPU s of its next looks", again, 1.0, cause=cause)


def year(base: Settings) -> Iterator[Cost]:
    read, due, listed = dict[int, float](), dict[int, float](), dict[int, float]()
    for hours in HOURS:
        since = datetime(2025, 1, 1, tzinfo=UTC)
        settings = replace(base, root=base.root / f"{hours}", since=f"{since:%Y-%m-%d}")
        lakehouse = load(declared(settings, 2))
        events, table = lakehouse.catalog.table("events"), lakehouse.catalog.table("rows_1")
        stored(lakehouse, events, since, 1)
        stored(lakehouse, table, since, hours)
        starts = [since + timedelta(hours=n) for n in range(hours)]
        equal = [replace(certificate(table, start), at=datetime.now(UTC)) for start in starts]
        for day in range(0, hours, 24):  # a file for each day of them
            certify(lakehouse.settings, equal[day : day + 24])
        with cpu(read, hours):
            found = coverage.coverage(lakehouse, table)
        if found.reconciled != hours:
            raise measure.BenchmarkError(f"{found.reconciled} hours of {hours} are reconciled")
        with cpu(due, hours):
            coverage.due(lakehouse, table)
        with cpu(listed, hours):
            coverage.partitions(lakehouse, table)
    cause = "`reconcile/coverage.py` reads every certificate and every file of the table"
    yield Cost("year", "CPU s of the coverage of a table", read, _PERSON, "hours", cause)
    yield Cost("year", "CPU s of what is due of it", due, _PERSON, "hours", cause)
    yield Cost("year", "CPU s of its partitions", listed, _PERSON, "hours", cause)


def stored(lakehouse: Lakehouse, table: Table, since: datetime, hours: int) -> None:
    """Makes a table with a file for each hour, all of one commit of its stream. The files are empty: no part reads them."""
    path = table_path(lakehouse.settings, table)
    table_creation.create(path, SCHEMA, True, "at")
    files = []
    for n in range(hours):
        at = since + timedelta(hours=n)
        folder = path / f"_partition={at:%Y-%m-%d-%H}"
        folder.mkdir()
        name = f"{folder.name}/{committer.new_name()}"
        (path / name).touch()
        stats = {
            "numRecords": 1,
            "minValues": {"at": at.isoformat()},
            "maxValues": {"at": at.isoformat()},
        }
        files.append(committer.new_file(path, name, stats, {"_partition": f"{at:%Y-%m-%d-%H}"}))
    end = since + timedelta(hours=hours)
    read = {
        each.name: {"reservoirVersion": 2, "index": -1}
        for each in lakehouse.catalog.input_tables(table)
    }
    about = {"inputs": {"tables": read}, "watermark": end, "frontier": end}
    made = Commit(
        table.name, "stream", 1, 0, 1, end, table.code_version, hours, written=hours, **about
    )
    mark = recorded([made], about | {"code_version": table.code_version})
    delta_writer.commit(files, path, f"{table.name}:stream:1", 0, mark)


def wide(base: Settings) -> Iterator[Cost]:
    """A commit of an ingest table whose topic has so many partitions, and the heads that hold its watermark back."""
    import pyarrow as pa

    size, write, read, held = (dict[int, float]() for _ in range(4))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for count in TABLES:
        lakehouse = load(declared(replace(base, root=base.root / f"{count}"), 1))
        table = lakehouse.catalog.table("events")
        path = lakehouse.path(table)
        table_creation.create(path, SCHEMA, True, "at")
        names = [f"events:{p}" for p in range(count)]
        latest = dict.fromkeys(names, now)
        holders = Holders(dict.fromkeys(names, timedelta(minutes=1)), {})
        with cpu(held, count):
            for _ in range(_ROUNDS):
                heads = holders.advanced({}, latest, now)
                heads = holders.heads({k: (h.event_time, h.active) for k, h in heads.items()})
                holders.watermark(now, heads, timedelta(seconds=1))
        commit_log = lakehouse.commit_log(table)
        inputs = {"events": {str(p): 10**12 for p in range(count)}}
        about = {"inputs": inputs, "watermark": now, "frontier": now}
        rows = pa.table(
            {
                "id": [1],
                "at": pa.array([now], pa.timestamp("us", "UTC")),
                "_partition": ["2026-01-01-00"],
            }
        )
        pairs = {name: (head.event_time, head.active) for name, head in heads.items()}
        with cpu(write, count):
            for n in range(_ROUNDS):
                made = Commit(
                    table.name,
                    "stream",
                    1,
                    n,
                    n + 1,
                    now,
                    table.code_version,
                    1,
                    written=1,
                    heads=pairs,
                    **about,
                )
                mark = recorded([made], about | {"code_version": table.code_version})
                delta_writer.append(rows, path, f"{table.name}:stream:1", n, mark)
                commit_log.append(made, recorded=True)
        with cpu(read, count):
            for _ in range(_ROUNDS):
                last = next(commit_log.by_stream())
        if len(last.heads) != count:
            raise measure.BenchmarkError(f"{len(last.heads)} heads of {count}")
        size[count] = delta_log.commit_file(path, delta_log.latest(path)).stat().st_size / 1024
        for points in (write, read, held):
            points[count] /= _ROUNDS
    cause = "each commit has the offset and the head of each partition"
    yield Cost("wide", "KiB of a commit's record", size, 10_240, "partitions of a topic", cause)
    yield Cost("wide", "CPU s to write it", write, 1.2, "partitions of a topic", cause)
    yield Cost("wide", "CPU s to read it back", read, 1.2, "partitions of a topic", cause)
    yield Cost("wide", "CPU s of the watermark", held, 1.2, "partitions of a topic", cause)


def definitions(base: Settings) -> Iterator[Cost]:
    """The code location of so many tables, and a usual tick of the sensor that reports what they closed."""
    built, tick = dict[int, float](), dict[int, float]()
    for tables in TABLES:
        lakehouse = filled(replace(base, root=base.root / f"{tables}"), tables, 3)
        with cpu(built, tables):
            location.build(lakehouse.settings).get_repository_def()
        with dg.DagsterInstance.ephemeral() as instance, cpu(tick, tables):
            _tick(lakehouse, instance)
    yield Cost(
        "dagster", "CPU s to load the code location", built, _LOCATION, cause="an asset each"
    )
    cause = "`assets/sensors.py` reads the commit log of each table"
    yield Cost("dagster", "CPU s of a tick of `closed_partitions`", tick, _SENSOR, cause=cause)


def _tick(lakehouse: Lakehouse, instance: dg.DagsterInstance) -> None:
    sensor = sensors.closed_partitions(lakehouse.settings, lakehouse.catalog)
    sensor.evaluate_tick(dg.build_sensor_context(instance))


def materialised(base: Settings) -> Iterator[Cost]:
    """One table of 50,000 closed hours: each is reported to an instance in memory, as the sensor and the daemon do."""
    reported, status, tick = (dict[int, float]() for _ in range(3))
    for hours in (PARTITIONS // 10, PARTITIONS):
        now = datetime.now(UTC)
        since = datetime(now.year, now.month, now.day, tzinfo=UTC) - timedelta(hours=hours)
        settings = replace(base, root=base.root / f"{hours}", since=f"{since:%Y-%m-%d}")
        lakehouse = load(declared(settings, 2))
        settings, table = lakehouse.settings, lakehouse.catalog.table("rows_1")
        stored(lakehouse, lakehouse.catalog.table("events"), since, 1)
        stored(lakehouse, table, since, hours)
        with (
            dg.DagsterInstance.ephemeral() as instance
        ):  # on disk an event costs four times as much
            with cpu(tick, hours):
                _tick(lakehouse, instance)
            events = sensors._closings(settings, lakehouse.catalog, table, None, hours)
            with cpu(reported, hours):
                for event in events:
                    instance.report_runless_asset_event(event)
            keys = [str(event.partition) for event in events]
            hourly = partitions.definition(settings, table)
            with cpu(status, hours):
                found = instance.get_status_by_partition(dg.AssetKey(table.name), keys, hourly)
            done = Counter(map(str, (found or {}).values()))
            if list(done.values()) != [hours]:
                raise measure.BenchmarkError(f"{dict(done)} of {hours} partitions")
    yield Cost(
        "partitions", "CPU s of a tick that reports 100 of them", tick, _SENSOR, "partitions"
    )
    yield Cost("partitions", "CPU s to report all of them", reported, 0, "partitions")
    yield Cost("partitions", "CPU s of their status in Dagster", status, _SENSOR, "partitions")


def process(base: Settings) -> Iterator[Cost]:
    """So many tables in one process with a JVM, as far as they start within the limit (`benchmarks.scale_process`)."""
    result = base.root / "process.json"
    command = [sys.executable, "-m", "benchmarks.scale_process", str(result), *map(str, PROCESS)]
    try:
        measure.run(command, to_environment(base), base.root / "process.log", _LIMIT)
    except measure.BenchmarkError as err:
        if not result.exists():
            raise
        print(f"process: {err}", file=sys.stderr)
    yield from of_process(
        {int(n): seen for n, seen in json.loads(result.read_text()).items()}, base
    )


def of_process(seen: Mapping[int, Mapping[str, float]], settings: Settings) -> Iterator[Cost]:
    def points(name: str) -> dict[int, float]:
        return {size: found[name] for size, found in seen.items()}

    pace = settings.pace("measured").total_seconds()
    busy = {size: size * cpu / pace for size, cpu in points("step_cpu").items()}
    cause = "`stream/advance.py`: each table has a thread, and a step and a commit of its own"
    yield Cost("process", f"cores, a step of each in {pace:g} s", busy, _CORES, cause=cause)
    yield Cost("process", "CPU s of one step", points("step_cpu"))
    yield Cost("process", "s to start the last query", points("start"), cause="one by one")
    idle = "`stream/engines/table_steps.py` looks at each input twice a second"
    yield Cost("process", "cores without input", points("idle_cores"), _CORES, cause=idle)
    cause = "`streaming_jobs/queries.py` observes each query"
    yield Cost("process", "s to observe all, each second", points("observed"), 60.0, cause=cause)
    heap = "plans and their generated code stay in the heap (`LAKEHOUSE_DRIVER_MEMORY`)"
    yield Cost("process", "MiB of the JVM's heap", points("heap"), 1024.0, cause=heap)
    for name, shown in (("jvm", "MiB of the JVM"), ("python", "MiB of Python")):
        yield Cost("process", shown, points(name), 24 * 1024.0 / 2, cause="")
    for name in ("python_threads", "jvm_threads"):
        yield Cost("process", name.replace("_", " "), points(name))


_PARTS: dict[str, Callable[[Settings], Iterator[Cost]]] = {
    "catalog": catalog,
    "commands": commands,
    "year": year,
    "wide": wide,
    "dagster": definitions,
    "partitions": materialised,
    "process": process,
}


def show(costs: list[Cost]) -> None:
    rows = []
    for cost in costs:
        a, b = cost.line
        measured = ", ".join(f"{n:,}: {value:.3g}" for n, value in cost.points.items())
        sizes = [f"{cost.at(n):.3g}" for n in TABLES] if cost.per == "tables" else [""] * 3
        wall = f"{cost.wall:,.0f}" if cost.wall else ""
        rows.append(
            (cost.name, cost.per, measured, f"{a:.3g} + {b:.3g} n", *sizes, cost.limit or "", wall)
        )
    names = ("what", "n", "measured", "line", *(f"{n:,}" for n in TABLES), "limit", "wall at")
    print_rows(names, rows, f"load {os.getloadavg()[0]:.0f}")
    walls = [cost for cost in costs if cost.wall and cost.per == "tables"]
    if walls:
        first = min(walls, key=lambda cost: cost.wall or 0)
        print(
            f"first wall: {first.name} reaches {first.limit:g} at {first.wall:,.0f} tables; {first.cause}"
        )
    for cost in costs:
        if len(cost.points) > 1 and cost.power > 1.3:
            print(f"no line: {cost.name} grows with n to the power of {cost.power:.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.scale", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--json", type=Path, help="file for all numbers")
    given = parser.parse_args()
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="lakehouse-scale-") as work:
        for part in given.only:
            root = Path(work).resolve() / part
            root.mkdir()
            try:
                costs += _PARTS[part](replace(from_environment(), root=root))
            except measure.BenchmarkError as err:
                print(f"{part}: {err}; void", file=sys.stderr)
                return 1
    show(costs)
    if given.json:
        given.json.write_text(json.dumps([asdict(cost) for cost in costs]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
