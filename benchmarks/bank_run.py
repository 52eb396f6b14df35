"""The record and the totals of the bank, both live, from a filled topic; then every version of the totals added up.

    python -m benchmarks.bank_run TRANSFERS RESULT

RESULT: a JSON object: `seconds` until all transfers are in the totals, `versions` of these.
"""

import json
import sys
import time
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.bank import ACCOUNTS
from benchmarks.measure import BenchmarkError
from lakehouse.declare import catalog
from lakehouse.runtime import spark_session
from lakehouse.settings import from_environment
from lakehouse.storage.session import Session
from lakehouse.stream import queries


def checked(session: Session, transfers: int) -> int:
    """How many versions the totals have, from the first transfers on. Raises BenchmarkError."""
    totals = session.path(session.catalog.table("account_totals"))
    versions = 0
    for version in range(1, DeltaTable(str(totals)).version() + 1):
        balances = column(totals, "balance", version)
        versions += bool(balances)
        if sum(balances):
            raise BenchmarkError(
                f"bank: the balances of version {version} add up to {sum(balances)}; the run is void"
            )
    made = session.read(session.catalog.table("bank_events")).where("kind = 'transfer'").persist()
    wanted = (
        legs(made, "from_account", -1)
        .unionByName(legs(made, "to_account", 1))
        .groupBy("account_id")
        .agg(
            F.sum("moved").cast("decimal(38,2)").alias("balance"),
            F.count(F.lit(1)).alias("transfers"),
        )
    )
    there = session.read(session.catalog.table("account_totals")).select(
        "account_id", F.col("balance").cast("decimal(38,2)").alias("balance"), "transfers"
    )
    if (
        made.count() != transfers
        or wanted.count() != ACCOUNTS
        or not wanted.exceptAll(there).isEmpty()
    ):
        raise BenchmarkError(
            f"bank: {made.count():,} transfers of {transfers:,}, or other balances; the run is void"
        )
    return versions


def column(table: Path, name: str, version: int | None = None) -> list:
    known = QueryBuilder().register("known", DeltaTable(str(table), version=version))
    return pa.table(known.execute(f"SELECT {name} FROM known").read_all())[name].to_pylist()


def legs(made: DataFrame, account: str, sign: int) -> DataFrame:
    return made.select(F.col(account).alias("account_id"), (F.col("amount") * sign).alias("moved"))


if __name__ == "__main__":
    transfers, result = int(sys.argv[1]), Path(sys.argv[2])
    settings = from_environment()
    session = Session(settings, catalog.load(settings), spark_session.create(settings, "bank"))
    tables = [session.catalog.table(name) for name in ("bank_events", "account_totals")]
    queries.prepare(session, tables)
    totals, began = session.path(tables[-1]), time.monotonic()
    running = [queries.start(session, table) for table in tables]
    while sum(column(totals, "transfers")) < 2 * transfers:
        if failed := next((query.exception() for query in running if query.exception()), None):
            raise failed
        time.sleep(0.2)
    seconds = time.monotonic() - began
    for query in running:
        query.stop()
    result.write_text(json.dumps({"seconds": seconds, "versions": checked(session, transfers)}))
    session.spark.stop()
