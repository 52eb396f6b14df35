"""A session, the settings and the catalog: what every run needs, as one value."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from lakehouse import delta_log
from lakehouse.catalog import Catalog, table_path
from lakehouse.durations import spark_interval
from lakehouse.event_time import PARTITION
from lakehouse.frontier import Journal
from lakehouse.ranges import Range
from lakehouse.settings import Settings
from lakehouse.table import Table

Side = Literal["", "quarantine", "early"]


@dataclass(frozen=True, slots=True)
class Lake:
    spark: SparkSession
    settings: Settings
    catalog: Catalog

    def path(self, table: Table, side: Side = "") -> Path:
        return table_path(self.settings, table, side)

    def pace(self, table: Table) -> str:
        """The least time between two micro-batches of the table's live query, as Spark reads it.

        Where a pipeline is to be filled every so often only the queries at its head wait: the others have nothing to do
        until then, and follow at once.
        """
        interval = self.settings.freshness_of(table.pipeline).interval
        return spark_interval(interval) if interval and self.catalog.at_head(table) else self.settings.trigger

    def journal(self, table: Table) -> Journal:
        return Journal(self.settings, table)

    def exists(self, table: Table) -> bool:
        return (self.path(table) / "_delta_log").is_dir()

    def read(self, table: Table, version: int | None = None, side: Side = "") -> DataFrame:
        """The rows of a table, technical columns included, now or at a Delta version."""
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(str(self.path(table, side)))

    def spanning(self, table: Table, span: Range, version: int | None = None) -> DataFrame:
        """As `read`, of a table with event time: the rows of the span, and others of the same files."""
        column = self.catalog.event_time(table)
        return self._of_files(table, lambda file: delta_log.may_hold(file, column, span), version)

    def partitions(self, table: Table, keys: Collection[str], version: int | None = None, side: Side = "") -> DataFrame:
        """As `read`, of some partitions alone."""
        return self._of_files(table, lambda file: file[f"partition.{PARTITION}"] in keys, version, side)

    def _of_files(
        self, table: Table, needed: Callable[[dict], bool], version: int | None = None, side: Side = ""
    ) -> DataFrame:
        """The rows of the files that are needed. Through Delta a table that has just changed costs most of a second to read."""
        path = self.path(table, side)
        files = [str(path / unquote(file["path"])) for file in delta_log.files(path, version) if needed(file)]
        schema = delta_log.schema(path, version)
        if not files:
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).option("basePath", str(path)).parquet(*files)

    def snapshots(self, versions: dict[str, int]) -> dict[str, DataFrame]:
        """Inputs without event time, each at its pinned version."""
        return {name: self.read(self.catalog.table(name), version) for name, version in versions.items()}
