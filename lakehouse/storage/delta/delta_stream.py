"""Rows added to a Delta table, as a streaming query of Spark's reads them."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk.objects import for_spark


def whole_table_stream(spark: SparkSession, path: Path) -> DataFrame:
    """Returns all rows of a Delta table in one micro-batch, then those that are added to it.

    Rows that are removed from it are not reported.
    """
    options: dict[str, str | int] = {"skipChangeCommits": "true", "maxFilesPerTrigger": 2**31 - 1}
    return spark.readStream.format("delta").options(**options).load(for_spark(path))


def table_stream(
    spark: SparkSession, settings: Settings, path: Path, since: int | str | None = None
) -> DataFrame:
    """Returns the rows added to a Delta table, commit by commit, so that stored watermarks come in order.

    They begin at the first commit with rows that is kept (`maintenance`), or `since` a version or "latest".
    A checkpoint goes on where it is. (A table may have had other columns before its first rows.)
    """
    if since is None:
        first = delta_log.rows_from(path)
        since = delta_log.latest(path) if first is None else first
    return (
        spark.readStream.format("delta")
        .option("startingVersion", since)
        .option("skipChangeCommits", "true")
        .option("maxFilesPerTrigger", settings.max_files_per_trigger)
        .load(for_spark(path))
    )
