"""The table of a database that `benchmarks.cdc` follows."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import changes, ingest_table, keyed_table

account_changes = changes(
    "bank.public.accounts", key="id", schema="id BIGINT, balance DECIMAL(12,2), moved BIGINT"
)


@ingest_table(layer="bronze", event_time="sent", delay="2 seconds")
def account_log(account_changes: DataFrame) -> DataFrame:
    """What the database's log says."""
    return account_changes


@keyed_table(layer="silver", keys=["id"])
def accounts(account_log: DataFrame) -> DataFrame:
    """The database's table."""
    newest = F.max_by(F.struct("balance", "moved", "deleted"), "position").alias("row")
    rows = account_log.groupBy("id").agg(newest).select("id", "row.*")
    return rows.where("NOT deleted").drop("deleted")
