"""A session on a lakehouse: all that a run needs to read or write rows, as one value."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.object_paths import ObjectPath
from lakehouse.ranges import Range
from lakehouse.storage.delta import delta_log, write_cache
from lakehouse.storage.delta.arrow import in_spark
from lakehouse.storage.disk.layout import Side
from lakehouse.storage.disk.objects import for_spark
from lakehouse.storage.keyed import event_time_index
from lakehouse.storage.lakehouse import Lakehouse, gone


@dataclass(frozen=True, slots=True)
class Session(Lakehouse):
    """A lakehouse with a Spark session, which reads and writes rows."""

    spark: SparkSession

    @classmethod
    def on(cls, lakehouse: Lakehouse, spark: SparkSession) -> "Session":
        return cls(lakehouse.settings, lakehouse.catalog, spark)

    def read(self, table: Table, version: int | None = None, side: Side = "") -> DataFrame:
        """Returns the rows of a table, technical columns included, now or at a Delta version."""
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(for_spark(self.path(table, side)))

    def spanning(
        self,
        table: Table,
        span: Range,
        version: int | None = None,
        within: Sequence[Range] | None = None,
    ) -> DataFrame:
        """Returns the rows of a span of event time, as `read` does, and other rows of the same files.

        `within`: only these parts of the span are needed.
        """

        def needed(file: dict) -> bool:
            held = self.may_hold(table, file, span)
            return held and (
                within is None or any(self.may_hold(table, file, part) for part in within)
            )

        return self._of_files(table, needed, version)

    def partitions(
        self, table: Table, keys: Collection[str], version: int | None = None, side: Side = ""
    ) -> DataFrame:
        """Returns the rows of some partitions alone, as `read` does."""
        return self._of_files(table, _lies_in(keys), version, side)

    def readable(
        self, table: Table, keys: Collection[str], version: int | None = None, side: Side = ""
    ) -> tuple[DataFrame, list[dict]]:
        """Returns the same from the files that are on disk, and the files, as the log names them, that are not."""
        return self._of_files_on_disk(table, _lies_in(keys), version, side)

    def _of_files(
        self, table: Table, needed: Callable[[dict], bool], version: int | None, side: Side = ""
    ) -> DataFrame:
        """Returns the rows of the files that are needed. Raises CommitError for a file that is not on disk."""
        rows, lost = self._of_files_on_disk(table, needed, version, side)
        if lost:
            raise gone(self.catalog, table, self.path(table, side), lost)
        return rows

    def _of_files_on_disk(
        self, table: Table, needed: Callable[[dict], bool], version: int | None, side: Side
    ) -> tuple[DataFrame, list[dict]]:
        """Returns the rows of the needed files on disk, and the needed files that are not there.

        They are read without Delta, which takes most of a second to read a table that has just changed.
        """
        path = self.path(table, side)
        stored = delta_log.open_table(path, version)
        present = delta_log.records(stored.get_add_actions(flatten=True))
        files = [file for file in present if needed(file)]
        lost = delta_log.lost(path, files)
        on_disk = [delta_log.data_file(path, file) for file in files if file not in lost]
        return self._read(path, on_disk, delta_log.schema_of(stored)), lost

    def rows_of(self, table: Table, files: Sequence[Path], schema: StructType) -> DataFrame:
        """Returns the rows of these files of a table. Raises CommitError for one that is not on disk."""
        path = self.path(table)
        if (rows := self.rows_here(files, schema)) is not None:
            return in_spark(self.spark, rows, nullable(schema))
        if lost := [{"path": str(file.relative_to(path))} for file in delta_log.missing(files)]:
            raise gone(self.catalog, table, path, lost)
        return self._read(path, files, schema)

    def rows_here(self, files: Sequence[Path], schema: StructType) -> pa.Table | None:
        """Returns the rows of these files if this process has just written them, with all of these columns, else None."""
        rows = write_cache.rows_of(files)
        if rows is None or not set(schema.names) <= set(rows.column_names):
            return None
        return rows.select(schema.names)

    def few_spanning(
        self, table: Table, span: Range, schema: StructType, most: int
    ) -> pa.Table | None:
        """Returns the rows of the span, read without Spark; None if that cannot be, or they are more than `most`.

        It cannot be if a file is not on disk, or was written with types that only Spark reads as these. No file has
        the partition column, so it is null in rows that this process has not just written.
        """
        path = self.path(table)
        named = [file for file in delta_log.files(path) if self.may_hold(table, file, span)]
        files = [delta_log.data_file(path, file) for file in named]
        # of an object, the reader itself finds out, by one request less
        if not isinstance(path, ObjectPath) and delta_log.missing(files):
            return None
        column = self.catalog.time_statistic(table)
        condition = event_time_index.within(column, self.stored_span(table, span))
        columns = to_arrow_schema(schema, timezone="UTC")
        in_memory = {file: self.rows_here([file], schema) for file in files}
        on_disk = [file for file in files if in_memory[file] is None]
        try:
            read = event_time_index.chosen(on_disk, columns, [condition], schema.names, most)
            written = [
                rows.cast(columns).filter(condition)
                for rows in in_memory.values()
                if rows is not None
            ]
        except (pa.ArrowException, OSError):  # a file may be gone by now
            return None
        if read is None:
            return None
        rows = pa.concat_tables([read, *written])
        return rows if rows.num_rows <= most else None

    def _read(self, path: Path, files: Sequence[Path], schema: StructType) -> DataFrame:
        if not files:
            return self.spark.createDataFrame([], schema)
        return (
            self.spark.read.schema(schema)
            .option("basePath", for_spark(path))
            .parquet(*map(for_spark, files))
        )

    def references(self, versions: dict[str, int]) -> dict[str, DataFrame]:
        """Returns the inputs without event time, each at its pinned version.

        Only keyed and versioned tables are read through Delta, because it skips their replaced rows.
        """
        tables = {self.catalog.table(name): version for name, version in versions.items()}
        return {
            table.name: self.read(table, version)
            if table.kind.is_upserted
            else self._of_files(table, lambda file: True, version)
            for table, version in tables.items()
        }


def _lies_in(keys: Collection[str]) -> Callable[[dict], bool]:
    return lambda file: file[f"partition.{PARTITION}"] in keys


def nullable(schema: StructType) -> StructType:
    """Returns the columns as files have them, where each may be null."""
    return StructType([StructField(field.name, field.dataType) for field in schema])
