"""A lakehouse as one value: the settings and the catalog."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from lakehouse.declare import catalog
from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.durations import duration
from lakehouse.errors import CommitError
from lakehouse.object_paths import ObjectPath
from lakehouse.ranges import Range
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk.layout import Side, table_path
from lakehouse.storage.log.commit_log import CommitLog

_INSTANT = timedelta(microseconds=1)
_LOOK_AT_FILES, _LOOK_AT_OBJECTS = 0.5, 2.0  # seconds
_LOOK = 0.25  # of the freshness: how often a query downstream of the head looks for commits


@dataclass(frozen=True, slots=True)
class Lakehouse:
    """The settings and the catalog: enough for code that reads logs and no rows. It needs no JVM."""

    settings: Settings
    catalog: Catalog

    def path(self, table: Table, side: Side = "") -> Path:
        return table_path(self.settings, table, side)

    def pace(self, table: Table) -> timedelta:
        """Returns the least time between two micro-batches of the table's streaming query.

        Only the queries at a pipeline's head wait. The others have nothing to do until these have
        committed, and follow at once. A query of Spark's has to look for such commits.
        """
        if self.catalog.at_head(table):
            return self.settings.pace(table.pipeline)
        return duration(self.settings.fresh_within) * _LOOK

    @property
    def look(self) -> float:
        """Returns the seconds between two looks for commits of other processes, which in an object store are requests."""
        return _LOOK_AT_OBJECTS if isinstance(self.settings.root, ObjectPath) else _LOOK_AT_FILES

    def commit_log(self, table: Table) -> CommitLog:
        return CommitLog(self.settings, table)

    def exists(self, table: Table) -> bool:
        return delta_log.exists(self.path(table))

    def may_hold(self, table: Table, file: dict, span: Range) -> bool:
        """Returns True unless the statistics of the table's file rule out a row in the span of event time."""
        column = self.catalog.time_statistic(table)
        return delta_log.may_hold(file, column, self.stored_span(table, span))

    def stored_span(self, table: Table, span: Range) -> Range:
        """Returns the span of event time in values of the column that places the table's rows in time (`time_statistic`).

        The result of a window belongs to the last instant before its end, which is what is stored.
        """
        shift = _INSTANT if table.window else timedelta(0)
        return Range(span.start + shift, span.end + shift)

    def least(self, table: Table, version: int | None = None) -> list[datetime | None]:
        """Returns the first event time of each file of the table, to a millisecond; None where its statistics do not say.

        Raises CommitError if a file is not on disk, which a caller that reads no rows would not notice.
        """
        self.check_whole(table, version)
        column = self.catalog.time_statistic(table)
        # the statistics have the end of a window; its result belongs to the last instant before that
        before = _INSTANT if table.window else timedelta(0)
        minima = [file.get(f"min.{column}") for file in delta_log.files(self.path(table), version)]
        return [each and each - before for each in minima]

    def lost(
        self, table: Table, keys: Collection[str], version: int | None = None, side: Side = ""
    ) -> dict[str, list[dict]]:
        """Returns the files of these partitions that the table's log names and that are not on disk, by partition."""
        path = self.path(table, side)
        by_partition: dict[str, list[dict]] = {}
        mine = (
            file
            for file in delta_log.files(path, version)
            if file[f"partition.{PARTITION}"] in keys
        )
        for file in delta_log.lost(path, mine):
            by_partition.setdefault(file[f"partition.{PARTITION}"], []).append(file)
        return by_partition

    def check_reachable(self, table: Table, version: int) -> None:
        """Raises CommitError if none of the table's files is on disk: that is an outage, and no verdict."""
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
            raise gone(self.catalog, table, path, lost)


def load(settings: Settings) -> Lakehouse:
    """Returns the lakehouse of the settings. Raises DeclarationError as `catalog.load` does."""
    return Lakehouse(settings, catalog.load(settings))


def gone(catalog: Catalog, table: Table, path: Path, lost: list[dict]) -> CommitError:
    """Returns the error, with its remedy, for data files that a table's log names and that are not on disk."""
    remedy = "restore it from a backup: an ingest table is computed from nothing else"
    if table.kind.is_derived:
        remedy = f"`lakehouse reconcile repair {table.name}` computes its partition again"
    if table.kind.is_reference:
        remedy = f"`lakehouse backfill {table.name}` computes it again"
    if table.kind.is_upserted:
        remedy = f"`lakehouse backfill {table.name}` has its job compute it whole, when it is started the next time"
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return CommitError(
        f"table={table.name}, file={delta_log.data_file(path, lost[0])}{more}: the table's log names it and it is not there, so "
        f"its rows cannot be read; {remedy}"
    )
