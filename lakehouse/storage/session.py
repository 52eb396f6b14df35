"""A session on a lakehouse: what every run that reads or writes rows needs, as one value."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.ranges import Range
from lakehouse.storage.delta import delta_log, write_cache
from lakehouse.storage.delta.arrow import in_spark
from lakehouse.storage.disk.layout import Side
from lakehouse.storage.keyed import event_time_index
from lakehouse.storage.lakehouse import Lakehouse, gone

_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Session(Lakehouse):
    """A lakehouse and Spark: what reads and writes rows."""

    spark: SparkSession

    @classmethod
    def on(cls, lakehouse: Lakehouse, spark: SparkSession) -> "Session":
        return cls(lakehouse.settings, lakehouse.catalog, spark)

    def read(self, table: Table, version: int | None = None, side: Side = "") -> DataFrame:
        """The rows of a table, technical columns included, now or at a Delta version."""
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(str(self.path(table, side)))

    def spanning(
        self,
        table: Table,
        span: Range,
        version: int | None = None,
        within: Sequence[Range] | None = None,
    ) -> DataFrame:
        """As `read`, of a table with event time: the rows of the span, and others of the same files.

        `within`: only these parts of the span are asked for.
        """

        def needed(file: dict) -> bool:
            held = self.may_hold(table, file, span)
            return held and (
                within is None or any(self.may_hold(table, file, part) for part in within)
            )

        return self._of_files(table, needed, version)

    def partitions(
        self,
        table: Table,
        keys: Collection[str],
        version: int | None = None,
        side: Side = "",
        *,
        without_lost: bool = False,
    ) -> DataFrame:
        """As `read`, of some partitions alone.

        `without_lost` of their files that are there (`lost` names the others).
        """
        return self._of_files(
            table, lambda file: file[f"partition.{PARTITION}"] in keys, version, side, without_lost
        )

    def _of_files(
        self,
        table: Table,
        needed: Callable[[dict], bool],
        version: int | None = None,
        side: Side = "",
        without_lost: bool = False,
    ) -> DataFrame:
        """The rows of the files that are needed.

        Through Delta a table that has just changed costs most of a second to read.

        Raises CommitError for a file that is not on disk, unless the caller knows and does without.
        """
        path = self.path(table, side)
        files = [file for file in delta_log.files(path, version) if needed(file)]
        if lost := delta_log.lost(path, files):
            if not without_lost:
                raise gone(self.catalog, table, path, lost)
            absent = {file["path"] for file in lost}
            files = [file for file in files if file["path"] not in absent]
        return self._read(
            path,
            [delta_log.data_file(path, file) for file in files],
            delta_log.schema(path, version),
        )

    def rows_of(self, table: Table, files: Sequence[Path], schema: StructType) -> DataFrame:
        """The rows of these files of a table. Raises CommitError for one that is not on disk."""
        path = self.path(table)
        if (kept := self.rows_here(files, schema)) is not None:
            return in_spark(self.spark, kept, nullable(schema))
        if lost := [{"path": str(file.relative_to(path))} for file in delta_log.missing(files)]:
            raise gone(self.catalog, table, path, lost)
        return self._read(path, files, schema)

    def rows_here(self, files: Sequence[Path], schema: StructType) -> pa.Table | None:
        """The rows of these files if this process has just written them."""
        kept = write_cache.rows_of(files)
        return None if kept is None else kept.select(schema.names)

    def few_spanning(
        self, table: Table, span: Range, schema: StructType, most: int
    ) -> pa.Table | None:
        """Returns the rows of the span, read without Spark; None if they are more than `most`, or a file is not on disk.

        The partition, which stands in no file, is null in rows that this process has not just written.
        """
        path = self.path(table)
        named = [file for file in delta_log.files(path) if self.may_hold(table, file, span)]
        files = [delta_log.data_file(path, file) for file in named]
        if delta_log.missing(files):
            return None
        shift = _INSTANT if table.window else timedelta()  # of a window its end is stored
        condition = event_time_index.within(
            self.catalog.time_statistic(table), Range(span.start + shift, span.end + shift)
        )
        kept = {file: self.rows_here([file], schema) for file in files}
        read = event_time_index.chosen(
            [file for file in files if kept[file] is None],
            to_arrow_schema(schema, timezone="UTC"),
            [condition],
            schema.names,
            most,
        )
        if read is None:
            return None
        written = [rows.filter(condition) for rows in kept.values() if rows is not None]
        return pa.concat_tables([read, *written], promote_options="default")

    def _read(self, path: Path, files: Sequence[Path], schema: StructType) -> DataFrame:
        if not files:
            return self.spark.createDataFrame([], schema)
        return (
            self.spark.read.schema(schema).option("basePath", str(path)).parquet(*map(str, files))
        )

    def references(self, versions: dict[str, int]) -> dict[str, DataFrame]:
        """Inputs without event time, each at its pinned version.

        Through Delta only where rows are marked as replaced.
        """
        tables = {self.catalog.table(name): version for name, version in versions.items()}
        return {
            table.name: self.read(table, version)
            if table.kind.is_upserted
            else self._of_files(table, lambda file: True, version)
            for table, version in tables.items()
        }


def nullable(schema: StructType) -> StructType:
    """The columns as files have them."""
    return StructType([StructField(field.name, field.dataType) for field in schema])
