"""Operator by disturbance: how often live and batch runs agree, ours and the same code without what we add.

    python -m benchmarks.matrix [--seeds 20] [--workers 2] [--write docs/why/equivalence.md]

Each cell is N streams: the operator run live through the disturbance, then computed by one batch run, and compared behind
the frontier. "Naive" is the same function over the same stored rows, once as a stream with Spark's own watermark and once
in batch. The random stories of the tests go further than these; the table is for people.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from benchmarks import operators
from lakehouse.declare.columns import ARRIVAL
from lakehouse.declare.table import Table
from lakehouse.ranges import Range
from lakehouse.reconcile import reconciliation
from lakehouse.runtime import spark_session
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.log.certificates import Certificate
from lakehouse.stream import strategy
from lakehouse.testing import COMMIT_POINTS, Stage
from lakehouse.transform import lateness, plan

# Berlin's clocks change within the day that begins two minutes later
START = datetime(2026, 3, 28, 22, 58, tzinfo=UTC)
Outcomes = Mapping[str, tuple[int, int | None]]
_DAY = 86_400
BEGIN, END = "<!-- matrix -->", "<!-- end of matrix -->"


@dataclass(frozen=True, slots=True)
class Click:
    id: int
    seconds: float
    user: int
    value: int
    partition: int

    def row(self) -> tuple[int, dict]:
        at = (START + timedelta(seconds=self.seconds)).isoformat()
        return self.partition, {
            "id": self.id,
            "user": f"user-{self.user}",
            "at": at,
            "value": self.value,
        }


@dataclass(frozen=True, slots=True)
class Stream:
    """Micro-batches of the record; how the tables' queries cut them again, and where everything crashes."""

    batches: list[list[Click]]
    files: int = 1_000
    crashes: tuple[str, ...] = ()


def plain(random: Random) -> Stream:
    clicks = [
        Click(n, 2.5 * n, random.randrange(3), random.randrange(100), random.randrange(2))
        for n in range(60)
    ]
    return Stream([clicks[i : i + 12] for i in range(0, len(clicks), 12)])


def cut(random: Random) -> Stream:
    return replace(plain(random), files=1)


def disordered(random: Random) -> Stream:
    """Each up to 4 s late: within the delay."""
    stream = plain(random)
    clicks = sorted(
        (c for batch in stream.batches for c in batch),
        key=lambda c: c.seconds + random.uniform(0, 4),
    )
    return replace(stream, batches=[clicks[i : i + 12] for i in range(0, len(clicks), 12)])


def late(random: Random) -> Stream:
    """One in five comes a batch or two after its own: 30 to 60 s."""
    batches = plain(random).batches
    moved: list[list[Click]] = [[] for _ in range(len(batches) + 2)]
    for n, batch in enumerate(batches):
        for click in batch:
            moved[n + (random.choice((1, 2)) if random.random() < 0.2 else 0)].append(click)
    return Stream([batch for batch in moved if batch])


def repeated(random: Random) -> Stream:
    """One in four is sent twice, the second time in the same batch or the next."""
    batches = plain(random).batches
    sent = [list(batch) for batch in batches]
    for n, batch in enumerate(batches):
        for click in batch:
            if random.random() < 0.25:
                sent[min(n + random.choice((0, 1)), len(batches) - 1)].append(click)
    return Stream(sent)


def lagging(random: Random) -> Stream:
    """One partition of the topic is read two batches behind the other, as in a catch-up."""
    batches = plain(random).batches
    sent: list[list[Click]] = [[] for _ in range(len(batches) + 2)]
    for n, batch in enumerate(batches):
        for click in batch:
            sent[n + 2 * click.partition].append(click)
    return Stream(sent)


def crashing(random: Random) -> Stream:
    """Every micro-batch of the record, and the first of each table, crash at one of the commit points and resume."""
    return replace(plain(random), crashes=tuple(random.choice(COMMIT_POINTS) for _ in range(8)))


def everything(random: Random) -> Stream:
    stream = late(random)
    shuffled = [
        random.sample(batch, len(batch)) + random.sample(batch, len(batch) // 3)
        for batch in stream.batches
    ]
    return Stream(shuffled, files=1, crashes=tuple(random.choice(COMMIT_POINTS) for _ in shuffled))


DISTURBANCES: dict[str, Callable[[Random], Stream]] = {
    "in order": plain,
    "cut file by file": cut,
    "disorder": disordered,
    "late rows": late,
    "rows sent twice": repeated,
    "a partition lags": lagging,
    "crashes": crashing,
    "all of it": everything,
}


def outcomes(
    spark: SparkSession, streams: Sequence[Stream], root: Path, told: Callable[[str], None]
) -> Outcomes:
    """Per operator in how many of the streams ours agree, and the naive ones (None: it has no naive form).

    The streams follow one another in one lakehouse, each on a day of its own: that is cheaper by far than a lakehouse for each.
    """
    stage = Stage(spark, root, operators)
    catalog = stage.session.catalog
    tables = [t for t in catalog if not (t.kind.reads_sources or t.kind.is_reference)]
    names = [t.name for t in tables]
    agreed: Counter[str] = Counter()
    for number, stream in enumerate(streams):
        _play(stage, names, stream, number)
        for table in tables:
            if table.kind.is_upserted:  # recomputed whole
                agreed[table.name] += (
                    reconciliation.reconcile(stage.session, table).verdict == "EQUAL"
                )
        told(f"{number + 1} of {len(streams)}")
    # closes the days
    stage.advance("clicks", Click(0, _DAY * (len(streams) + 2), 0, 99, 0).row()[1])
    stage.run(*names)
    naive: dict[str, int | None] = {}
    for table in tables:
        if not table.kind.is_upserted:
            stage.update(table.name)
            found = reconciliation.reconcile_parts(stage.session, table)
            agreed[table.name] += sum(
                _agrees(found, _day(number)) for number in range(len(streams))
            )
        naive[table.name] = _naive(stage, table, streams)
    return {table.name: (agreed[table.name], naive[table.name]) for table in tables}


def _play(stage: Stage, names: Sequence[str], stream: Stream, number: int) -> None:
    half = len(stream.batches) // 2
    for n, batch in enumerate(stream.batches):
        crash = stream.crashes[n % len(stream.crashes)] if stream.crashes else None
        moved = [
            replace(click, id=click.id + 1_000 * number, seconds=click.seconds + _DAY * number)
            for click in batch
        ]
        stage.feed("clicks", [click.row() for click in moved], abort_at=crash)
        if n == half:
            stage.run(
                *names,
                files_per_batch=stream.files,
                abort_at=stream.crashes[-1] if stream.crashes else None,
            )
            stage.refresh("latest_values")
    stage.advance("clicks", Click(0, _DAY * number + 3 * 3600, 0, 99, 0).row()[1])
    stage.run(*names, files_per_batch=stream.files)


def _day(number: int) -> Range:
    """When the stream of that number lies; it begins two minutes before the end of a day in Berlin."""
    start = START + timedelta(days=number)
    return Range(start, start + timedelta(days=1))


def _agrees(found: Sequence[Certificate], span: Range) -> bool:
    within = [c for c in found if c.start < span.end and span.start < c.end]
    return all(c.verdict == "EQUAL" for c in within) and sum(c.rows_recomputed for c in within) > 0


def _naive(stage: Stage, table: Table, streams: Sequence[Stream]) -> int | None:
    """The function as one would run it: Spark's watermark, no stored one; windows that have closed, live and in batch."""
    if (
        table.window is None
        or table.late == "update"
        or strategy.in_batch_only(stage.session, plan.plan_of(stage.session, table))
    ):
        return None
    spark, path = (
        stage.session.spark,
        str(stage.session.path(stage.session.catalog.table("clicks"))),
    )
    # commit by commit
    reader = spark.readStream.format("delta").option("maxFilesPerTrigger", min(streams[0].files, 2))

    def computed(rows: DataFrame) -> DataFrame:
        flagged = lateness.flagged(rows, table, "at")
        return table(clicks=lateness.accepted(flagged, late_too=True).drop(ARRIVAL))

    found: list[Row] = []
    live = computed(reader.load(path).withWatermark("at", "5 seconds")).writeStream.option(
        "checkpointLocation", tempfile.mkdtemp(dir=stage.session.settings.root)
    )
    query = (
        live.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.format("delta").load(path)
    watermark = rows.agg(F.max("at") - F.expr("interval 5 seconds")).head()[0]
    batch = computed(rows).where(F.col("window.end") <= F.lit(watermark)).collect()
    days = [_day(number) for number in range(len(streams))]
    return sum(_of_day(found, day) == _of_day(batch, day) for day in days)


def _of_day(rows: Sequence[Row], day: Range) -> list[str]:
    return sorted(str(row) for row in rows if day.start <= row.window.end.astimezone(UTC) < day.end)


def measured_of(name: str, seeds: int) -> Outcomes:
    """One disturbance, in a session of this process."""
    streams = [DISTURBANCES[name](Random(f"{name} {seed}")) for seed in range(seeds)]
    spark = SparkSession.getActiveSession() or _session()
    with tempfile.TemporaryDirectory() as root:
        return outcomes(
            spark,
            streams,
            Path(root),
            lambda done: print(f"{name}: {done}", file=sys.stderr, flush=True),
        )


def measured(seeds: int, workers: int) -> dict[str, dict[str, tuple[int, int | None]]]:
    """Operator -> disturbance -> in how many of the streams ours agree, and the naive ones."""
    found: dict[str, dict[str, tuple[int, int | None]]] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for name, outcome in zip(
            DISTURBANCES, pool.map(partial(measured_of, seeds=seeds), DISTURBANCES), strict=True
        ):
            for operator, cell in outcome.items():
                found.setdefault(operator, {})[name] = cell
    return found


def table_of(found: dict[str, dict[str, tuple[int, int | None]]], seeds: int) -> str:
    """The matrix in Markdown: ours / naive, of so many streams."""
    lines = [
        "| operator | " + " | ".join(DISTURBANCES) + " |",
        "|---" * (len(DISTURBANCES) + 1) + "|",
    ]
    for operator, cells in found.items():
        shown = (f"{ours} / {'–' if naive is None else naive}" for ours, naive in cells.values())
        lines.append(f"| {operator.replace('_', ' ')} | " + " | ".join(shown) + " |")
    pairs = [cell for cells in found.values() for cell in cells.values()]
    naive = [n for _, n in pairs if n is not None]
    total = f"{seeds} streams a cell. Of {len(pairs) * seeds} comparisons ours agree in {sum(o for o, _ in pairs)}; "
    return "\n".join([*lines, "", total + f"of {len(naive) * seeds} naive ones {sum(naive)} do."])


def _session() -> SparkSession:
    conf = {
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
    }
    spark = spark_session.create(
        Settings(jars=from_environment().jars, spark_conf=conf, shuffle_partitions=1), "matrix"
    )
    spark.sparkContext.setLogLevel("OFF")  # each crash asked for would print a page
    return spark


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.matrix", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=20, help="streams a cell")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", type=Path, help="a page of the docs, whose matrix is replaced")
    given = parser.parse_args()
    found = measured(given.seeds, given.workers)
    text = table_of(found, given.seeds)
    print(text)
    if given.write:
        before, _, rest = given.write.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        given.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    ours = all(o == given.seeds for cells in found.values() for o, _ in cells.values())
    return 0 if ours else 1


if __name__ == "__main__":
    sys.exit(main())
