"""Many commits: what a step, a commit, a read and `table list` take when a table has a day of them behind it.

    python -m benchmarks.commits COMMITS SECONDS RESULT

A record gets COMMITS micro-batches, one for every SECONDS of arrival: the first by Spark, the others by the same write with
rows of that one, in place of the time of its plan. As in a job, commit logs are copied and the table's log is cut after each
30 s of arrival, and each hour is maintained when it is over. Then it and a record of a hundred micro-batches take one in
turn, in the same warm process, and are read in turn: what both have in common, noise and warm-up, is in both. RESULT: a JSON
object, what is measured -> CPU seconds of each, of Python and Spark's JVM.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as F

from batch_jobs import maintain
from benchmarks import command_cpu, keyed, measure
from benchmarks.state_run import START, records
from lakehouse.declare.columns import PARTITION, REASON
from lakehouse.maintenance.retention import LogCuts
from lakehouse.ranges import BEGINNING
from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.delta import delta_log
from lakehouse.storage.log import log_tables
from lakehouse.storage.position import table_state
from lakehouse.storage.session import Session
from lakehouse.stream.engines import ingest
from lakehouse.stream.micro_batch import BatchLog, StreamRun, stream_run
from lakehouse.stream.prepared_steps import Few
from lakehouse.stream.reading.raw_records import raw_records
from lakehouse.testing import Stage

FEW, MEASURED, ROWS = 100, 50, 100  # micro-batches, micro-batches, rows of each
_LISTS = 5  # runs of the command
_FLUSH = timedelta(seconds=30)
_LIMIT = 7_200.0  # seconds

Pair = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Aged:
    """CPU seconds by what is measured, of the table of few micro-batches and of that of many."""

    micro_batches: int
    cpu: Mapping[str, Pair]
    logged: tuple[int, int]  # versions that the logs of the two tables have

    @property
    def times(self) -> dict[str, float]:
        """Returns, by medians, how many times as much is taken behind many as behind few."""
        return {name: median(many) / median(few) for name, (few, many) in self.cpu.items()}


def run(base: Settings, micro_batches: int, every: float) -> Aged:
    """With a micro-batch for every so many seconds of arrival. Raises BenchmarkError if a row is missing or there twice."""
    settings = replace(base, root=base.root / "commits")
    result = settings.root / "commits.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.commits",
        str(micro_batches),
        str(every),
        str(result),
    ]
    measure.run(command, to_environment(settings), settings.root / "run.log", _LIMIT)
    found = json.loads(result.read_text())
    for rows, wanted in zip(found["rows"], (FEW, micro_batches), strict=True):
        if rows != (wanted + 2 * MEASURED) * ROWS:
            raise measure.BenchmarkError(
                f"commits: {rows:,} rows after {wanted + 2 * MEASURED:,} micro-batches of {ROWS}; void"
            )
    return Aged(micro_batches, found["cpu"], tuple(found["logged"]))


class _Record:
    """A record that gets micro-batches, one for every `step` of arrival."""

    def __init__(self, session: Session, step: timedelta) -> None:
        self.session, self._step = session, step
        self.table = session.catalog.table("arrivals")
        self._query: StreamRun = stream_run(session, table_state.read(session, self.table))
        self.path, self.n = session.path(self.table), 0
        self.take_step()
        rows = DeltaTable(str(self.path)).to_pyarrow_table()
        self._rows = rows.append_column(REASON, pa.nulls(len(rows), pa.string()))

    def take_step(self) -> None:
        """A whole micro-batch by Spark."""
        log = BatchLog(BEGINNING, self._at, self._inputs)
        ids = range(self.n * ROWS, (self.n + 1) * ROWS)
        batch = records(self.session, ids, self._at, self.n * ROWS)
        raw = raw_records(self._query, {"key_topic": batch})
        ingest.ingest_batch(self._query, raw, self.n, log)
        self.n += 1

    def commit(self) -> None:
        """Writes a micro-batch without Spark, as a step does whose plan is prepared."""
        at, rows = self._at, self._rows
        for name, value in (("at", at), (PARTITION, f"{at:%Y-%m-%d-%H}")):
            place = rows.schema.get_field_index(name)
            column = pa.array([value] * len(rows), rows.schema.field(name).type)
            rows = rows.set_column(place, name, column)
        counted = {"arrived": len(rows), "frontier": at, "heads": {"keys-0": (at, at)}}
        self._query.write(
            Few(rows, {}),
            self.n,
            lambda _: counted,
            noted={"topics": {}, "at": at},
            watermark=at,
            inputs=self._inputs,
        )
        self.n += 1

    def fill(self, wanted: int) -> None:
        cuts, tables = LogCuts(self.session), [self.table]
        while self.n < wanted:
            self.commit()
            arrived = self.n * self._step
            if not arrived % _FLUSH:
                log_tables.flush(self.session.settings, tables)
                cuts.cut(tables)
            if not arrived % timedelta(hours=1):
                list(maintain.run(self.session))

    def read(self) -> None:
        """Reads what the last hundred micro-batches wrote."""
        since = (self._at - self._step * FEW).isoformat()
        self.session.read(self.table).where(F.col("at") > F.lit(since).cast("timestamp")).agg(
            F.max("id")
        ).collect()

    def listed(self) -> float:
        """Returns the CPU seconds of `table list`."""
        command = [sys.executable, "-m", "lakehouse", "table", "list"]
        return command_cpu.cpu(command, self.session.settings)

    @property
    def _at(self) -> datetime:
        return START + self._step * self.n

    @property
    def _inputs(self) -> dict:
        return {"keys": {"0": (self.n + 1) * ROWS}}


def _cpu_of(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)  # the clock of another process, by Linux


def main(micro_batches: int, step: timedelta, result: Path) -> None:
    settings = from_environment()
    spark = spark_session.create(settings, "commits")
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    both = [
        _Record(Stage(spark, settings.root / name, keyed).session, step) for name in ("few", "many")
    ]
    for record, wanted in zip(both, (FEW, micro_batches), strict=True):
        record.fill(wanted)
    logged = [len(delta_log.versions(record.path)) for record in both]

    def measured(act: Callable[[_Record], object]) -> tuple[list[float], list[float]]:
        spent: tuple[list[float], list[float]] = [], []
        for _ in range(MEASURED):
            for record, into in zip(both, spent, strict=True):
                before = time.process_time() + _cpu_of(jvm)
                act(record)
                into.append(time.process_time() + _cpu_of(jvm) - before)
        return spent

    cpu = {
        "a step": measured(_Record.take_step),
        "a commit": measured(_Record.commit),
        "a read of the last hundred": measured(_Record.read),
        "table list": [[record.listed() for _ in range(_LISTS)] for record in both],
    }
    rows = [DeltaTable(str(record.path)).count() for record in both]
    result.write_text(json.dumps({"cpu": cpu, "logged": logged, "rows": rows}))
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), timedelta(seconds=float(sys.argv[2])), Path(sys.argv[3]))
