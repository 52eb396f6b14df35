"""Maintenance: closed partitions in few files, and no more of the past than someone needs.

It runs beside the stream, without a JVM.

Each Delta table has an oldest version: this one and all later ones can be read, and replayed by a
stream. It lies `settings.history` or `settings.versions` back, whichever is less, or further if a
reader still needs more (`needs`, runs that hold it, `read_holds`). Older commits of the log go, and
after the history the files that they alone hold. Compaction keeps the rows, their order and their
technical columns; a stream that reads the table sees no change.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.durations import duration
from lakehouse.errors import CommitError, JobError
from lakehouse.logs import warn_once
from lakehouse.maintenance import needs
from lakehouse.ranges import BEGINNING, partition_range
from lakehouse.settings import Settings
from lakehouse.storage.delta import committer, delta_log, housekeeping
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.disk.publish_lock import publishing
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.versions import read_holds

_log = logging.getLogger(__name__)

_GROWN = 250  # versions, after which a job looks at a log again: what readers need of it takes half a second to find out


@dataclass(frozen=True, slots=True)
class Place:
    """One Delta table to look after: a table, its quarantine, or a log table."""

    name: str
    path: Path
    # whether a partition is complete, by its key ("" for a table without partitions)
    closed: Callable[[str], bool]
    needed: Mapping[str, int]  # who -> from which version on
    # the same for readers that can do without versions older than the history
    wished: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The maintenance of a place, planned or done."""

    table: str
    partitions: tuple[str, ...]  # closed ones with more than one small file
    files: int  # the small files in them
    oldest: int  # this version and all later ones stay
    held_by: str  # the reader that needs older versions than the settings ask for; empty if there is none
    commits: int  # commits of the log that are older
    obsolete: int  # files that no kept version has


def places(lakehouse: Lakehouse, table: Table) -> list[Place]:
    """Returns a table, its quarantine and answers, as far as they are on disk. The job itself maintains early results."""
    settings, has_partitions = lakehouse.settings, table.kind.has_partitions
    if table.kind.reads_sources:  # its partitions are hours of arrival
        ahead = datetime.now(UTC)
    else:
        ahead = frontier(settings, table) or BEGINNING

    def closed(partition: str) -> bool:
        return has_partitions and partition_range(partition, table.partition_by).end <= ahead

    needed, wished = needs.needed(lakehouse, table), needs.wished(lakehouse, table)
    all_places = [Place(table.name, table_path(settings, table), closed, needed, wished)]
    if has_partitions:
        path = table_path(settings, table, "quarantine")
        all_places.append(Place(f"{table.name}__quarantine", path, closed, {}))
    if table.lookup:
        path = table_path(settings, table, "answers")
        all_places.append(Place(f"{table.name}__answers", path, closed, {}))
    return [place for place in all_places if delta_log.exists(place.path)]


def log_tables(settings: Settings) -> list[Place]:
    """Returns the log tables, as far as they are on disk."""
    paths = (layout.log_table(settings, name) for name in get_args(layout.LogTable))
    return [Place(path.name, path, lambda _: True, {}) for path in paths if delta_log.exists(path)]


def plan(settings: Settings, place: Place) -> Maintenance:
    """Returns what there is to do; changes nothing."""
    partitions, files = _scattered(place)
    oldest, held_by = _oldest(settings, place)
    log = [version for version in delta_log.versions(place.path) if version < oldest]
    gone = _remove_obsolete(settings, place, oldest, dry_run=True)
    return Maintenance(place.name, partitions, files, oldest, held_by, len(log), len(gone))


def maintain(settings: Settings, place: Place) -> Maintenance:
    """Maintains the place and returns what was done. Another run finds nothing to do.

    Raises CommitError if another run rewrote the same partitions meanwhile; the table is as that
    run left it.
    """
    planned = plan(settings, place)
    if planned.partitions:
        housekeeping.compact(place.path, planned.partitions)
    committer.check(place.path)
    if planned.obsolete:
        _remove_obsolete(settings, place, planned.oldest, dry_run=False)
    housekeeping.cut(place.path, planned.oldest)
    return planned


class LogCuts:
    """Cuts the logs of a job's tables between two runs of maintenance: a commit a second makes 3,600 versions an hour."""

    def __init__(self, lakehouse: Lakehouse) -> None:
        self._lakehouse = lakehouse
        self._looked_at: dict[str, int] = {}

    def cut(self, tables: Iterable[Table]) -> None:
        """Cuts the log that has grown most since it was looked at, if that is enough: one, for the job's heart to beat on.

        A table that another process rewrites is left to the next look.
        """
        grown = {table.name: self._grown(table) for table in tables}
        name = max(grown, key=grown.__getitem__, default="")
        if grown.get(name, 0) < _GROWN:
            return
        self._looked_at[name] += grown[name]
        table, settings = self._lakehouse.catalog.table(name), self._lakehouse.settings
        try:
            with publishing(settings, table):
                for place in places(self._lakehouse, table):
                    housekeeping.cut(place.path, _oldest(settings, place)[0])
        except JobError as err:
            _log.info(f"table={name}: its log is cut later: {err}")
        except CommitError as err:
            warn_once(_log, f"table={name}: its log is not cut: {err}")

    def _grown(self, table: Table) -> int:
        """Returns the versions of the table and its quarantine since the last look; at first those that the logs have."""
        paths = [self._lakehouse.path(table, side) for side in ("", "quarantine")]
        if table.name not in self._looked_at:
            self._looked_at[table.name] = sum(map(delta_log.oldest, paths))
        return sum(committer.head(path).version for path in paths) - self._looked_at[table.name]


def forget(place: Place) -> None:
    """Cuts the log down to the versions that someone needs, at least the present one."""
    versions = delta_log.versions(place.path)
    needed = (version for version in place.needed.values() if version >= versions[0])
    housekeeping.begin_with(place.path, min([versions[-1], *needed]))


def _scattered(place: Place) -> tuple[tuple[str, ...], int]:
    """Returns the closed partitions that have more than one small file, and the number of these files."""
    counts: dict[str, int] = {}
    for file in delta_log.files(place.path):
        if file["size_bytes"] < housekeeping.SMALL:
            partition = file.get(f"partition.{PARTITION}", "")
            counts[partition] = counts.get(partition, 0) + 1
    scattered = sorted(p for p, n in counts.items() if n > 1 and place.closed(p))
    return tuple(scattered), sum(counts[p] for p in scattered)


def _remove_obsolete(settings: Settings, place: Place, oldest: int, *, dry_run: bool) -> list[str]:
    history = duration(settings.history)
    return housekeeping.remove_obsolete(place.path, oldest, history, dry_run=dry_run)


def _oldest(settings: Settings, place: Place) -> tuple[int, str]:
    """Returns the oldest version to keep, that of a checkpoint, and the reader that needs more than the settings ask for.

    A reader that needs a version that is gone already has lost it, and holds nothing.
    """
    versions = delta_log.versions(place.path)
    first, last = versions[0], versions[-1]
    past = housekeeping.last_before(place.path, datetime.now(UTC) - duration(settings.history))
    runs = read_holds.began(settings)
    held = {"a run that is under way": housekeeping.last_before(place.path, runs)} if runs else {}
    enough = max(past, last + 1 - settings.versions)
    wished = {who: max(version, past) for who, version in place.wished.items()}
    needed = {**place.needed, **wished, **held}
    older = {who: version for who, version in needed.items() if first <= version < enough}
    wanted = {"": enough} | older
    who = min(wanted, key=wanted.__getitem__)
    checkpoints = delta_log.checkpoints(place.path)
    return max((v for v in checkpoints if first <= v <= wanted[who]), default=first), who
