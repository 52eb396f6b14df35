"""Many commits: what the next micro-batch and a reader take when a table has ten thousand behind it, maintenance beside.

    python -m benchmarks.commits COMMITS SECONDS RESULT

A record gets COMMITS micro-batches, one for every SECONDS of arrival; each hour of them is compacted when it is over. Then
it and a record of a hundred micro-batches take one in turn, in the same warm process, and are read in turn: what both
have in common, noise and warm-up, is in both. RESULT: a JSON object, case -> seconds of each.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

from deltalake import DeltaTable
from pyspark.sql import functions as F

from batch_jobs import maintain
from benchmarks import keyed, measure
from benchmarks.state_run import START, records
from lakehouse.ranges import BEGINNING
from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment, to_environment
from lakehouse.storage.position import table_state
from lakehouse.storage.session import Session
from lakehouse.stream.engines import ingest
from lakehouse.stream.micro_batch import BatchLog, StreamRun, stream_run
from lakehouse.stream.reading.raw_records import raw_records
from lakehouse.testing import Stage

FEW, MEASURED, ROWS = 100, 50, 100  # micro-batches, micro-batches, rows of each
_LIMIT = 7_200.0  # seconds


@dataclass(frozen=True, slots=True)
class Aged:
    """Seconds of each micro-batch and of each read, behind few micro-batches and behind many."""

    micro_batches: int
    commits: tuple[tuple[float, ...], tuple[float, ...]]
    reads: tuple[tuple[float, ...], tuple[float, ...]]

    @property
    def commit(self) -> float:
        """How many times as long a micro-batch takes behind many: by medians."""
        return _times(self.commits)

    @property
    def read(self) -> float:
        return _times(self.reads)


def _times(seconds: tuple[tuple[float, ...], tuple[float, ...]]) -> float:
    few, many = seconds
    return median(many) / median(few)


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
        if rows != (wanted + MEASURED) * ROWS:
            raise measure.BenchmarkError(
                f"commits: {rows:,} rows after {wanted + MEASURED:,} micro-batches of {ROWS}; void"
            )
    return Aged(
        micro_batches,
        *(tuple(tuple(each) for each in found[name]) for name in ("commits", "reads")),
    )


def _commit(session: Session, query: StreamRun, n: int, step: timedelta) -> None:
    at = START + step * n
    log = BatchLog(BEGINNING, at, {"keys": {"0": (n + 1) * ROWS}})
    batch = records(session, range(n * ROWS, (n + 1) * ROWS), at, n * ROWS)
    ingest.ingest_batch(query, raw_records(query, {"key_topic": batch}), n, log)


def _read(session: Session, n: int, step: timedelta) -> None:
    """Reads what the last hundred micro-batches wrote."""
    since = (START + step * (n - FEW)).isoformat()
    session.read(session.catalog.table("arrivals")).where(
        F.col("at") > F.lit(since).cast("timestamp")
    ).agg(F.max("id")).collect()


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def main(micro_batches: int, step: timedelta, result: Path) -> None:
    settings, an_hour = from_environment(), timedelta(hours=1) // step
    spark = spark_session.create(settings, "commits")
    sessions = [Stage(spark, settings.root / name, keyed).session for name in ("few", "many")]
    states = [table_state.read(session, session.catalog.table("arrivals")) for session in sessions]
    queries = [stream_run(*each) for each in zip(sessions, states, strict=True)]
    filled = (FEW, micro_batches)
    for session, query, wanted in zip(sessions, queries, filled, strict=True):
        for n in range(wanted):
            _commit(session, query, n, step)
            if n % an_hour == an_hour - 1:
                list(maintain.run(session))
    commits, reads = ([[], []] for _ in range(2))
    for n in range(MEASURED):
        for i, (session, query, wanted) in enumerate(zip(sessions, queries, filled, strict=True)):
            commits[i].append(_timed(partial(_commit, session, query, wanted + n, step)))
            reads[i].append(_timed(partial(_read, session, wanted + n, step)))
    rows = [
        DeltaTable(str(session.path(session.catalog.table("arrivals")))).count()
        for session in sessions
    ]
    result.write_text(json.dumps({"commits": commits, "reads": reads, "rows": rows}))
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), timedelta(seconds=float(sys.argv[2])), Path(sys.argv[3]))
