"""CPU seconds of commands, each a process of its own, over a root of so many tables and commits; no Spark runs.

    python -m benchmarks.command_cpu [--tables 4] [--commits 20] [--rounds 7] [--only "table list" ...]

The floor is what a module of tables imports by itself, `from pyspark.sql import DataFrame`. Commands take turns, so that noise
of the machine is in all of them; its load is printed. Exit code 1 if a command fails: then the numbers are void.
"""

import argparse
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from statistics import median

import pyarrow as pa
from pyspark.sql.types import StructType

from benchmarks.measure import BenchmarkError
from lakehouse.cli.console import print_rows
from lakehouse.declare.table import Table
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.delta import delta_writer, table_creation
from lakehouse.storage.disk.layout import commit_log, table_path
from lakehouse.storage.disk.notes import encoded
from lakehouse.storage.lakehouse import Lakehouse, load
from lakehouse.storage.log.certificates import Certificate, certify
from lakehouse.storage.log.commits import Commit

COMMANDS = (
    "--help",
    "table list",
    "reconcile status",
    "stream status",
    "query 'SELECT count(*) AS n FROM rows_1'",
)
FLOOR = "import pyspark.sql"
START = datetime(2026, 1, 1, tzinfo=UTC)
_EVERY = timedelta(seconds=30)  # of event time between two commits
SCHEMA = StructType().add("id", "long").add("at", "timestamp").add("_partition", "string")
_MODULE = '''"""Tables whose commands are measured."""

from pyspark.sql import DataFrame

from lakehouse import ingest_table, kafka, row_table

topic = kafka("events", schema="id BIGINT NOT NULL, at TIMESTAMP NOT NULL")


@ingest_table(layer="bronze", event_time="at", delay="1 second")
def events(topic: DataFrame) -> DataFrame:
    return topic
'''
_ROWS = """

@row_table(layer="silver")
def {name}(events: DataFrame) -> DataFrame:
    return events
"""


def declared(base: Settings, tables: int) -> Settings:
    """Writes a module with an ingest table and tables of its rows, so many in all, and returns the settings that name it."""
    base.root.mkdir(parents=True, exist_ok=True)
    text = _MODULE + "".join(_ROWS.format(name=f"rows_{n}") for n in range(1, tables))
    module = f"measured_tables_{token_hex(4)}"  # a process has one module of a name
    (base.root / f"{module}.py").write_text(text)
    return replace(base, tables=(module,), module_path=(base.root,))


def filled(base: Settings, tables: int, commits: int) -> Lakehouse:
    """A lakehouse of an ingest table and tables of its rows, each with so many small commits, as the streams make them."""
    settings = declared(base, tables)
    names = [f"rows_{n}" for n in range(1, tables)]
    lakehouse = load(settings)
    first = lakehouse.catalog.table("events")
    _write(settings, first, commits)
    log = commit_log(settings, first).read_text()
    for name in names:  # the same once more: a commit of each would take minutes
        table = lakehouse.catalog.table(name)
        shutil.copytree(table_path(settings, first), table_path(settings, table))
        commit_log(settings, table).write_text(log.replace('"events"', f'"{name}"'))
    certify(settings, (certificate(lakehouse.catalog.table(name), START) for name in names))
    return lakehouse


def _write(settings: Settings, table: Table, commits: int) -> None:
    path = table_path(settings, table)
    table_creation.create(path, SCHEMA, True, "at")
    lines = []
    for n in range(commits):
        at = START + _EVERY * n
        rows = pa.table(
            {
                "id": [n],
                "at": pa.array([at], pa.timestamp("us", "UTC")),
                "_partition": [f"{at:%Y-%m-%d-%H}"],
            }
        )
        version = delta_writer.append(rows, path, f"{table.name}:stream:1", n, {"inputs": {}})
        made = Commit(
            table.name,
            "stream",
            1,
            n,
            version,
            at,
            table.code_version,
            1,
            written=1,
            watermark=at,
            frontier=at,
        )
        lines.append(encoded(made))
    log = commit_log(settings, table)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(f"{line}\n" for line in lines))


def certificate(table: Table, start: datetime) -> Certificate:
    """Returns the verdict that an hour is EQUAL."""
    end = start + timedelta(hours=1)
    return Certificate(
        table.name, start, end, "EQUAL", 1, 1, 0, "", "", end, 1, {}, table.code_version, end, 1.0
    )


def measured(settings: Settings, commands: list[str], rounds: int) -> dict[str, list[float]]:
    """CPU seconds, user and system, of each round of each command. Raises BenchmarkError if one fails."""
    runs = {FLOOR: ["-c", FLOOR]} | {
        each: ["-m", "lakehouse", *shlex.split(each)] for each in commands
    }
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, words in runs.items():
            seconds = cpu([sys.executable, *words], settings)
            if number:  # the first one fills caches
                spent[name].append(seconds)
    return spent


def cpu(command: list[str], settings: Settings) -> float:
    """Returns the CPU seconds of a command. Raises BenchmarkError if it fails."""
    # bytecode is cached, as where people install a package: to compile it again is most of what a command would take
    environment = os.environ | to_environment(settings)
    environment |= {
        "PYTHONPYCACHEPREFIX": str(settings.root / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise BenchmarkError(
            f"{' '.join(command[1:])}: exit code {run.returncode}; the run is void:\n{run.stderr}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.command_cpu", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--tables", type=int, default=4)
    parser.add_argument("--commits", type=int, default=20, help="of each table")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--only", nargs="+", default=list(COMMANDS), help="commands, each as one word"
    )
    given = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="lakehouse-bench-") as work:
        base = replace(from_environment(), root=Path(work).resolve() / "root")
        lakehouse = filled(base, given.tables, given.commits)
        spent = measured(lakehouse.settings, given.only, given.rounds)
    title = (
        f"{given.tables} tables, {given.commits:,} commits each, median of {given.rounds}; load {load_before:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after"
    )
    rows = ((name, f"{median(cpu):.2f}", f"{min(cpu):.2f}") for name, cpu in spent.items())
    print_rows(("command", "CPU s", "least"), rows, title)
    return 0


if __name__ == "__main__":
    sys.exit(main())
