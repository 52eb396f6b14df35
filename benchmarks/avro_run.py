"""The ingest tables of `benchmarks.avro_tables`, in turn, again and again, in one process.

    python -m benchmarks.avro_run ROWS ROUNDS RESULT

A process of their own for each would hide what is looked for behind its start-up. RESULT: a JSON object, name -> a list of
rounds, [wall, CPU] each. One more round comes first, warms up and is left out.
"""

import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
from pyspark.sql import functions as F

from benchmarks.avro import TABLES
from benchmarks.measure import BenchmarkError, Cost, Tree
from benchmarks.topic import START_MS
from lakehouse.declare import catalog
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.storage.session import Session
from lakehouse.stream import queries

EXPECTED = {  # of a row by its number: `avro.row`
    "account": "concat('account-', n % 1000)",
    "shop": "concat('shop-', n % 37)",
    "cents": "n * 7919 % 100000",
    "note": "if(n % 10 = 0, NULL, concat('note ', n))",
    "at": f"timestamp_millis({START_MS} + n)",
}


def filled(session: Session, name: str) -> Cost:
    """What the ingest table took to read its topic to the end."""
    table, tree = session.catalog.table(TABLES[name]), Tree(psutil.Process())
    queries.prepare(session, [table])
    began, spent = time.monotonic(), tree.cpu()
    queries.start(session, table, available_now=True).awaitTermination()
    return Cost(time.monotonic() - began, tree.cpu() - spent)


def checked(session: Session, name: str, rows: int) -> None:
    """Each row once, and as it was. Raises BenchmarkError."""
    table = session.catalog.table(TABLES[name])
    same = " AND ".join(f"{column} <=> ({value})" for column, value in EXPECTED.items())
    found = session.read(table).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_distinct("n").alias("numbers"),
        F.count(F.when(F.expr(same), 1)).alias("same"),
        F.min("n").alias("first"),
        F.max("n").alias("last"),
    )
    (one,) = found.collect()
    if tuple(one) != (rows, rows, rows, 0, rows - 1):
        raise BenchmarkError(f"avro, {name}: {one} for {rows:,} rows; the run is void")


def main(rows: int, rounds: int, result: Path) -> None:
    settings = from_environment()
    spark = spark_session.create(settings, "avro")
    found: dict[str, list[list[float]]] = {name: [] for name in TABLES}
    for number in range(-1, rounds):
        for name, costs in found.items():
            own = replace(settings, root=settings.root / f"round_{number}_{name}")
            session = Session(own, catalog.load(own), spark)
            cost = filled(session, name)
            checked(session, name, rows)
            shutil.rmtree(own.root)
            if number >= 0:
                costs.append([cost.wall, cost.cpu])
    result.write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
