"""Maintenance: closed partitions in few files, and no more of the past than someone needs.

Beside the stream, without a JVM.

Each Delta table has an oldest version: this one and all later ones can be read, and replayed by a
stream. It lies `settings.history` back or `settings.versions`, whichever is less, or further where
someone still needs more (`needs`, runs that hold it, `read_holds`). Older commits of the log go,
and after the history the files that they alone hold. What is compacted keeps its rows, their order
and their technical columns; to a stream that reads the table it is no change.
"""

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

from lakehouse.declare.catalog import Catalog
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.durations import duration
from lakehouse.errors import CommitError
from lakehouse.maintenance import needs
from lakehouse.ranges import EPOCH, partition_range
from lakehouse.settings import Settings
from lakehouse.storage import delta_log, layout, read_holds, vectors
from lakehouse.storage.commit_log import frontier
from lakehouse.storage.layout import table_path

_log = logging.getLogger(__name__)

_SMALL = 50 << 20  # bytes; Delta's target is twice that, so that two small files always make one
# files of a log, with the checksums that Hadoop puts beside them
_NUMBERED = re.compile(r"\.?(\d{20})\.")


@dataclass(frozen=True, slots=True)
class Place:
    """One Delta table to look after: a table, its quarantine, or a log table."""

    name: str
    path: Path
    # whether a partition is complete, by its key ("" of a table without partitions)
    closed: Callable[[str], bool]
    needed: Mapping[str, int]  # who -> from which version on
    # as above, by who does without what is past the history
    wished: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What is to be done at a place, or was done."""

    table: str
    partitions: tuple[str, ...]  # closed ones with more than one small file
    files: int  # small ones in them
    oldest: int  # this version and all later ones stay
    held_by: str  # who needs versions older than that; empty: nobody
    commits: int  # of the log, older
    obsolete: int  # files that no version kept has


def places(settings: Settings, catalog: Catalog, table: Table) -> list[Place]:
    """A table and its quarantine, as far as they are on disk.

    Of early results the streaming job takes care itself.
    """
    kind = catalog.kind(table)
    # the partitions of an ingest table are hours of arrival
    ahead = datetime.now(UTC) if kind == "ingest" else frontier(settings, table) or EPOCH

    def closed(partition: str) -> bool:
        return (
            catalog.has_quarantine(table)
            and partition_range(partition, table.partition_by).end <= ahead
        )

    path = table_path(settings, table)
    found = [
        Place(
            table.name,
            path,
            closed,
            needs.needed(settings, catalog, table),
            needs.wished(settings, catalog, table),
        )
    ]
    if catalog.has_quarantine(table):
        found.append(
            Place(
                f"{table.name}__quarantine", table_path(settings, table, "quarantine"), closed, {}
            )
        )
    return [place for place in found if (place.path / "_delta_log").is_dir()]


def log_tables(settings: Settings) -> list[Place]:
    """The log tables, as far as they are on disk."""
    paths = (layout.log_table(settings, name) for name in get_args(layout.LogTable))
    return [
        Place(path.name, path, lambda _: True, {})
        for path in paths
        if (path / "_delta_log").is_dir()
    ]


def plan(settings: Settings, place: Place) -> Maintenance:
    """What there is to do; changes nothing."""
    partitions, files = _scattered(place)
    oldest, held_by = _oldest(settings, place)
    log = [
        v
        for p in (place.path / "_delta_log").glob("*.json")
        if p.stem.isdigit() and (v := int(p.stem)) < oldest
    ]
    gone = _vacuum(settings, place, oldest, dry_run=True)
    return Maintenance(place.name, partitions, files, oldest, held_by, len(log), len(gone))


def maintain(settings: Settings, place: Place) -> Maintenance:
    """Does it, and says what it did. Run again, it finds nothing to do.

    Raises CommitError if another run rewrote the same partitions meanwhile; the table is as that
    run left it.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    found = plan(settings, place)
    try:
        if found.partitions:
            _compact(DeltaTable(str(place.path)), found.partitions)
    except CommitFailedError as err:
        raise CommitError(
            f"table={place.name}: another run rewrote what was being compacted ({err}); nothing was changed, run this again"
        ) from err
    if found.obsolete:
        _vacuum(settings, place, found.oldest, dry_run=False)
    _cut(place.path / "_delta_log", found.oldest)
    return found


def forget(place: Place) -> None:
    """Cuts the log down to the versions that someone needs, at least the present one."""
    from deltalake import DeltaTable

    log = place.path / "_delta_log"
    first = min(int(p.stem) for p in log.glob("*.json") if p.stem.isdigit())
    oldest = min(
        [DeltaTable(str(place.path)).version(), *(v for v in place.needed.values() if v >= first)]
    )
    DeltaTable(str(place.path), version=oldest).create_checkpoint()
    _cut(log, oldest)


def _scattered(place: Place) -> tuple[tuple[str, ...], int]:
    """The closed partitions that have more than one small file, and how many these are."""
    counts: dict[str, int] = {}
    for file in delta_log.files(place.path):
        if file["size_bytes"] < _SMALL:
            partition = file.get(f"partition.{PARTITION}", "")
            counts[partition] = counts.get(partition, 0) + 1
    found = sorted(p for p, n in counts.items() if n > 1 and place.closed(p))
    return tuple(found), sum(counts[p] for p in found)


def _compact(table, partitions: tuple[str, ...]) -> None:
    from deltalake import WriterProperties

    chosen = [(PARTITION, "in", list(partitions))] if partitions != ("",) else None
    # one core, for the stream goes on; the better compression costs nothing where it is done once
    table.optimize.compact(
        chosen,
        max_concurrent_tasks=1,
        writer_properties=WriterProperties(compression="ZSTD"),
        post_commithook_properties=_commit_only(),
    )


def _vacuum(settings: Settings, place: Place, oldest: int, *, dry_run: bool) -> list[str]:
    """Removes, or lists, the data files that no version from `oldest` on has, those of crashed writers among them."""
    from deltalake import DeltaTable

    commit = place.path / "_delta_log" / f"{oldest:020}.json"
    # a reader that has listed a file may read it for the history, though the log is shorter
    age = max(datetime.now(UTC) - _written(commit), duration(settings.history))
    # one more, for a file is written before its commit
    hours = math.ceil(age / timedelta(hours=1)) + 1
    marked = vectors.any_of(place.path)
    gone = DeltaTable(str(place.path)).vacuum(
        hours,
        dry_run=dry_run or marked,
        enforce_retention_duration=False,
        full=True,
        keep_versions=[oldest],
        post_commithook_properties=_commit_only(),
    )
    if marked:
        gone = vectors.removed(place.path, gone, oldest, dry_run=dry_run)
    # Hadoop's checksums go along
    return [file for file in gone if not file.rpartition("/")[2].startswith(".")]


def _commit_only():
    """Checkpoints are for the table's own writer to make, and to clean up before them is what is done here."""
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def _oldest(settings: Settings, place: Place) -> tuple[int, str]:
    """The oldest version to keep, that of a checkpoint.

    And who needs it, if it is older than the settings ask for.

    Who needs a version that is gone already has lost it, and holds nothing.
    """
    log = place.path / "_delta_log"
    commits = sorted((p for p in log.glob("*.json") if p.stem.isdigit()), reverse=True)
    last, first = int(commits[0].stem), int(commits[-1].stem)

    def at(instant: datetime) -> int:
        return next((int(p.stem) for p in commits if _written(p) < instant), first)

    past, runs = at(datetime.now(UTC) - duration(settings.history)), read_holds.began(settings)
    enough = max(past, last + 1 - settings.versions)
    wished = {who: max(version, past) for who, version in place.wished.items()}
    needed = {**place.needed, **wished, **({"a run that is under way": at(runs)} if runs else {})}
    wanted = {"": enough} | {
        who: version for who, version in needed.items() if first <= version < enough
    }
    who = min(wanted, key=lambda each: wanted[each])
    checkpoints = (int(p.name[:20]) for p in log.glob("*.checkpoint.parquet"))
    return max((v for v in checkpoints if first <= v <= wanted[who]), default=first), who


def _written(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _cut(log: Path, oldest: int) -> None:
    """Removes what is older than the checkpoint `oldest`, oldest first: as Delta's protocol has it.

    And Delta's summaries (`.crc`) of versions before the last checkpoint, half of the files that
    each reader lists: they are there to be compared with when that very version is read.
    """
    numbered = sorted(
        (int(found[1]), p) for p in log.iterdir() if (found := _NUMBERED.match(p.name))
    )
    last = max(
        (version for version, p in numbered if p.name.endswith(".checkpoint.parquet")),
        default=oldest,
    )
    for version, path in numbered:
        if version < oldest or (version < last and path.name == f"{version:020}.crc"):
            path.unlink(missing_ok=True)
