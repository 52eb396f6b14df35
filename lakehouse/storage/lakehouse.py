"""A lakehouse, and a session on it: what every run needs, as one value."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.durations import duration
from lakehouse.errors import CommitError
from lakehouse.ranges import Range
from lakehouse.settings import Settings
from lakehouse.storage import delta_log, recent
from lakehouse.storage.arrow import in_spark
from lakehouse.storage.commit_log import CommitLog
from lakehouse.storage.layout import Side, table_path

_INSTANT = timedelta(microseconds=1)
_LOOK = 0.25  # of the freshness: how often a query behind the head looks for news


@dataclass(frozen=True, slots=True)
class Lakehouse:
    """The settings and what is declared: enough for whatever reads logs, and no rows. It needs no JVM."""

    settings: Settings
    catalog: Catalog

    def path(self, table: Table, side: Side = "") -> Path:
        return table_path(self.settings, table, side)

    def pace(self, table: Table) -> timedelta:
        """The least time between two micro-batches of the table's streaming query.

        Only the queries at a pipeline's head wait: the others have nothing to do until these have
        committed, and follow at once. A query of Spark's has to look for that.
        """
        if self.catalog.at_head(table):
            return self.settings.pace(table.pipeline)
        return duration(self.settings.fresh_within) * _LOOK

    def commit_log(self, table: Table) -> CommitLog:
        return CommitLog(self.settings, table)

    def exists(self, table: Table) -> bool:
        return delta_log.exists(self.path(table))

    def may_hold(self, table: Table, file: dict, span: Range) -> bool:
        """Whether the statistics of a file of the table do not rule out that it has a row in the span of event time."""
        # a window's result is placed by the last instant before the end that the statistics have
        end = span.end + _INSTANT if table.window else span.end
        column = self.catalog.time_statistic(table)
        return delta_log.may_hold(file, column, Range(span.start, end))

    def least(self, table: Table, version: int | None = None) -> list[datetime | None]:
        """The first event time of each file of the table, to a millisecond; None where its statistics do not say.

        Raises CommitError if one is not on disk: nobody else may look for it.
        """
        self.check_whole(table, version)
        column = self.catalog.time_statistic(table)
        # a window's result is placed by the last instant before the end that the statistics have
        before = _INSTANT if table.window else timedelta(0)
        found = [file.get(f"min.{column}") for file in delta_log.files(self.path(table), version)]
        return [each and each - before for each in found]

    def lost(
        self, table: Table, keys: Collection[str], version: int | None = None, side: Side = ""
    ) -> dict[str, list[dict]]:
        """Of these partitions the files that the table's log names and that are not on disk, by partition."""
        path = self.path(table, side)
        found: dict[str, list[dict]] = {}
        mine = (
            file
            for file in delta_log.files(path, version)
            if file[f"partition.{PARTITION}"] in keys
        )
        for file in delta_log.lost(path, mine):
            found.setdefault(file[f"partition.{PARTITION}"], []).append(file)
        return found

    def check_reachable(self, table: Table, version: int) -> None:
        """Raises CommitError if none of the table's files is there: that is an outage, and no verdict."""
        path = self.path(table)
        files = delta_log.files(path, version)
        if len(delta_log.lost(path, files)) == len(files):
            raise CommitError(
                f"table={table.name}, files={len(files)} (in {path}): the table's log names them and none is there; bring the "
                f"storage back, or, if they are lost, `lakehouse reconcile repair {table.name}` computes them again"
            )

    def check_whole(self, table: Table, version: int | None = None) -> None:
        """Raises CommitError if a file of the table, now or at a version, is not on disk."""
        path = self.path(table)
        if lost := delta_log.lost(path, delta_log.files(path, version)):
            raise _gone(self.catalog, table, path, lost)


@dataclass(frozen=True, slots=True)
class Session(Lakehouse):
    """A lakehouse and Spark: what reads and writes rows."""

    spark: SparkSession

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
        found = [file for file in delta_log.files(path, version) if needed(file)]
        if lost := delta_log.lost(path, found):
            if not without_lost:
                raise _gone(self.catalog, table, path, lost)
            gone = {file["path"] for file in lost}
            found = [file for file in found if file["path"] not in gone]
        return self._read(
            path,
            [delta_log.data_file(path, file) for file in found],
            delta_log.schema(path, version),
        )

    def rows_of(self, table: Table, files: Sequence[Path], schema: StructType) -> DataFrame:
        """The rows of these files of a table. Raises CommitError for one that is not on disk."""
        path = self.path(table)
        if (kept := recent.rows_of(files)) is not None:
            # as of rows from files
            nullable = StructType([StructField(f.name, f.dataType) for f in schema])
            return in_spark(self.spark, kept.select(schema.names), nullable)
        if lost := [{"path": str(file.relative_to(path))} for file in delta_log.missing(files)]:
            raise _gone(self.catalog, table, path, lost)
        return self._read(path, files, schema)

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
            if table.keeps
            else self._of_files(table, lambda file: True, version)
            for table, version in tables.items()
        }


def _gone(catalog: Catalog, table: Table, path: Path, lost: list[dict]) -> CommitError:
    """What to say of data files that a table's log names and that are not on disk."""
    remedy = "restore it from a backup: an ingest table is computed from nothing else"
    if catalog.is_derived(table):
        remedy = f"`lakehouse reconcile repair {table.name}` computes its partition again"
    if catalog.kind(table) == "reference":
        remedy = f"`lakehouse backfill {table.name}` computes it again"
    if table.keeps:
        remedy = f"`lakehouse backfill {table.name}` has its job compute it whole, when it is started the next time"
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return CommitError(
        f"table={table.name}, file={path / unquote(lost[0]['path'])}{more}: the table's log names it and it is not there, so its "
        f"rows cannot be read; {remedy}"
    )
