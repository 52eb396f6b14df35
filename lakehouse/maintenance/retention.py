"""Maintenance: closed partitions in few files, and no more of the past than someone needs.

Beside the stream, without a JVM.

Each Delta table has an oldest version: this one and all later ones can be read, and replayed by a
stream. It lies `settings.history` back or `settings.versions`, whichever is less, or further where
someone still needs more (`needed`, runs that hold it, `read_holds`). Older commits of the log go,
and after the history the files that they alone hold. What is compacted keeps its rows, their order
and their technical columns; to a stream that reads the table it is no change.
"""

import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lakehouse.batch.publish import intended
from lakehouse.declare.catalog import Catalog, table_path
from lakehouse.declare.columns import PARTITION
from lakehouse.declare.table import Table
from lakehouse.durations import duration
from lakehouse.errors import CommitError
from lakehouse.ranges import EPOCH, PARTITION_LENGTHS, floor, partition_range
from lakehouse.reconcile import invalidation
from lakehouse.settings import Settings
from lakehouse.storage import checkpoints, delta_log, read_holds, vectors
from lakehouse.storage.checkpoints import CHECKPOINTS
from lakehouse.storage.commit_log import frontier
from lakehouse.storage.commits import COMMIT_LOGS
from lakehouse.storage.files import read_value
from lakehouse.storage.handovers import handover_of

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
            needed(settings, catalog, table),
            _wished(settings, catalog, table),
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
    paths = (settings.root / COMMIT_LOGS / name for name in ("_commits", "_certificates"))
    return [
        Place(path.name, path, lambda _: True, {})
        for path in paths
        if (path / "_delta_log").is_dir()
    ]


def needed(settings: Settings, catalog: Catalog, table: Table) -> dict[str, int]:
    """Who needs the table from which version on: streams that read it, tables that have it pinned, its own stream.

    A stream is known by its checkpoint, also if its table is not declared any more; without one by
    commit log or last commit.
    """
    from deltalake import DeltaTable

    path = table_path(settings, table)
    found: dict[str, int] = {}
    if not (path / "_delta_log").is_dir():
        return found
    identity = str(DeltaTable(str(path)).metadata().id)
    for checkpoint in _checkpoints(settings.root / CHECKPOINTS):
        if (version := _read_up_to(checkpoint, identity)) is not None:
            found[checkpoint.parent.name] = version
    for reader in catalog:
        begun = handover_of(settings, reader)
        # its stream has not started yet
        if begun and begun.input == table.name and reader.name not in found:
            found[reader.name] = begun.version
        if reader is not table and table.name not in reader.inputs:
            continue
        stands = checkpoints.standing(settings, reader)
        last = stands.noted or stands.written or stands.taken_back
        if last and reader.name == table.name:
            # a batch that is replayed looks for its commit from there on
            found["its own query"] = last.version
        elif (
            last
            and reader.name not in found
            and table.name in (read := last.inputs.get("tables", {}))
        ):
            found[reader.name] = read[table.name]["reservoirVersion"]
        elif last and table.name in (pinned := last.inputs.get("references", {})):
            found[reader.name] = pinned[table.name]
    return found


def _wished(settings: Settings, catalog: Catalog, table: Table) -> dict[str, int]:
    """From which version on the table is of use to what can do without.

    A reconciliation that finds less than it has to look at takes all of history for changed; a
    batch run that was killed finds its commit there, for those that read the table; a table yet
    to be declared begins at its handover.
    """
    readers = [
        t for t in (*catalog.derived, *catalog.keyed) if t is table or table.name in t.inputs
    ]
    looked = {
        reader.name: invalidation.looked_at(settings, reader).get(table.name) for reader in readers
    }
    found = {
        f"the reconciliation of {name}": version
        for name, version in looked.items()
        if version is not None
    }
    killed = read_value(
        intended(settings, table), dict, f"a killed batch run of {table.name} holds no version back"
    )
    if killed is not None:
        found["a batch run that was killed"] = killed["before"]
    path, ahead = table_path(settings, table), frontier(settings, table)
    many = delta_log.latest(path) - delta_log.oldest(path) >= settings.versions
    if many and ahead and catalog.has_quarantine(table):
        length = "day" if any(t.partition_by == "day" for t in readers) else table.partition_by
        found["a table yet to be declared"] = _reaching(
            catalog, table, path, floor(ahead, PARTITION_LENGTHS[length])
        )
    return found


def _reaching(catalog: Catalog, table: Table, path: Path, instant: datetime) -> int:
    """The last version kept before any by which rows from the instant on may have come: a stream that wants them begins there."""
    column = catalog.event_time(table) if catalog.kind(table) == "ingest" else ""
    for change in delta_log.changes(path, delta_log.oldest(path) - 1, column) or ():
        spans = change.spans or [
            partition_range(key, table.partition_by) for key in change.partitions
        ]
        if any(span.end > instant for span in spans):
            return change.version - 1
    return delta_log.latest(path)


def _checkpoints(folder: Path) -> list[Path]:
    """The last generation of each query; early results start again with each process."""
    queries = (
        [q for q in folder.iterdir() if not q.name.endswith("__early")] if folder.is_dir() else []
    )
    lives = ([life for life in query.iterdir() if life.name.isdigit()] for query in queries)
    return [max(found, key=lambda life: int(life.name)) for found in lives if found]


def _read_up_to(checkpoint: Path, identity: str) -> int | None:
    """The version from which a query reads the table of that id when it is started again.

    None if it reads another.

    Spark has its sources prepare the last committed batch once more then, from where the batch
    before it ended.
    """
    begun, done = (_numbers(checkpoint / name) for name in ("offsets", "commits"))
    if not begun:
        return None
    last = next(
        (
            offsets
            for batch in reversed(begun)
            if (offsets := _offsets(checkpoint, batch)) is not None
        ),
        [],
    )
    before = _offsets(checkpoint, done[-1] - 1) if done and done[-1] - 1 in begun else None
    return None if _position(last, identity) is None else _position(before or [], identity) or 0


def _position(offsets: Sequence[Mapping], identity: str) -> int | None:
    """The version of the table of that id up to which a batch reads; None if it reads another."""
    return next(
        (offset["reservoirVersion"] for offset in offsets if offset.get("reservoirId") == identity),
        None,
    )


def _offsets(checkpoint: Path, batch: int) -> list[dict] | None:
    """Up to where the batch reads its sources.

    None, and said on standard error, if the file is torn.
    """
    path = checkpoint / "offsets" / str(batch)
    try:
        found = [dict(json.loads(line)) for line in path.read_text().splitlines()[2:]]
        if not found or any(
            "reservoirId" in offset and not isinstance(offset["reservoirVersion"], int)
            for offset in found
        ):
            raise ValueError("no offsets")
        return found
    except (ValueError, TypeError, KeyError) as err:
        message = f"it says what a query has read, and is torn ({err}), so the batches before it decide what is kept for it"
        remedy = f"if its table is not declared any more, remove {checkpoint.parent}"
        _log.warning(f"file={path}: {message}; {remedy}")
        return None


def _numbers(folder: Path) -> list[int]:
    return (
        sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []
    )


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
