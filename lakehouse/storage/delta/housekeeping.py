"""Compaction and removal of files and versions of a table, beside the stream that writes it, without a JVM.

The caller decides which versions have to stay (`maintenance`).
"""

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

from lakehouse.declare.columns import PARTITION
from lakehouse.storage.delta import (
    committer,
    deletion_vector_files,
    delta_log,
    log_state,
    small_commits,
)
from lakehouse.storage.delta.delta_log import open_table
from lakehouse.storage.delta.log_state import LogState
from lakehouse.storage.disk.objects import written_whole

SMALL = (
    50 << 20
)  # bytes, below which a file is compacted; twice that are at most in one, so that two always make one

# files of a log, with the checksums that Hadoop puts beside them
_NUMBERED = re.compile(r"\.?(\d{20})\.")


def compact(path: Path, partitions: Sequence[str]) -> None:
    """Compacts the small files of these partitions ("" for a table without partitions).

    Raises CommitError if another run rewrote them meanwhile. The table stays as that run left it.
    """
    _compact(log_state.newest(path), partitions)


def _compact(log: LogState, partitions: Sequence[str]) -> None:
    # not by deltalake 1.6, which compacts files again that another compaction has removed: their rows are there twice then
    by_partition: dict[str, list[dict]] = {partition: [] for partition in partitions}
    for file in sorted(log.files.values(), key=lambda file: file["modificationTime"]):
        partition = file["partitionValues"].get(PARTITION, "")
        if partition in by_partition and file["size"] < SMALL and "deletionVector" not in file:
            by_partition[partition].append(file)
    groups = [group for files in by_partition.values() for group in _groups(files)]
    whole = [_merged(log, group) for group in groups]
    if groups:
        small_commits.move(log.path, [*chain(*groups)], whole, log.version)


def _groups(files: Sequence[dict]) -> list[list[dict]]:
    """Returns the files in lists that become one file each, in order."""
    groups: list[list[dict]] = [[]]
    for file in files:
        if sum(each["size"] for each in groups[-1]) + file["size"] > 2 * SMALL:
            groups.append([])
        groups[-1].append(file)
    return [group for group in groups if len(group) > 1]


def _merged(log: LogState, files: Sequence[dict]) -> dict:
    """Writes a file with the rows of the files, of which one at a time is in memory, and returns it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from lakehouse.storage.delta import version_rows

    values = files[0]["partitionValues"]
    columns = pa.schema(open_table(log.path, log.version).schema().to_arrow())
    schema = pa.schema([field for field in version_rows.plain(columns) if field.name not in values])
    searched = [name for name in small_commits.searched_columns(log) if name in schema.names]
    named = committer.new_name().replace("snappy", "zstd")
    place = delta_log.data_file(log.path, files[0]).with_name(named)
    rows, found = 0, [schema.empty_table().select(searched)]
    how = {"coerce_timestamps": "us", "store_decimal_as_integer": True}
    # better compression costs nothing where it is done once
    with (
        written_whole(place) as sink,
        pq.ParquetWriter(sink, schema, compression="zstd", **how) as writer,
    ):
        for file in files:
            part = version_rows.rows_of(log.path, file, schema)
            writer.write_table(part)
            found.append(part.select(searched))
            rows += part.num_rows
    stats = small_commits.statistics(pa.concat_tables(found), searched) | {"numRecords": rows}
    return committer.new_file(log.path, str(place.relative_to(log.path)), stats, values)


def remove_obsolete(path: Path, oldest: int, history: timedelta, *, dry_run: bool) -> list[str]:
    """Removes, or only lists, the data files that no version from `oldest` on has, including those of crashed writers.

    A reader that has listed a file may read it for the `history`, even if the log is shorter.
    """
    age = max(datetime.now(UTC) - _written(path, oldest), history)
    # one hour more, because a file is written before its commit
    hours = math.ceil(age / timedelta(hours=1)) + 1
    marked = deletion_vector_files.any_of(path)
    gone = open_table(path).vacuum(
        hours,
        dry_run=dry_run or marked,
        enforce_retention_duration=False,
        full=True,
        keep_versions=[oldest],
        post_commithook_properties=_commit_only(),
    )
    if marked:
        gone = deletion_vector_files.removed(path, gone, oldest, dry_run=dry_run)
    # Hadoop's checksums are removed as well, and not listed
    return [file for file in gone if not file.rpartition("/")[2].startswith(".")]


def _commit_only():
    """Returns properties of a commit without checkpoint and cleanup: the table's writer makes checkpoints, `cut` cleans up."""
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def last_before(path: Path, instant: datetime) -> int:
    """Returns the last version that was on disk before the instant; the first that is kept, if none was."""
    versions = delta_log.versions(path)
    return next((v for v in reversed(versions) if _written(path, v) < instant), versions[0])


def begin_with(path: Path, version: int) -> None:
    """Makes the version the oldest that can be read."""
    open_table(path, version).create_checkpoint()
    cut(path, version)


def cut(path: Path, oldest: int) -> None:
    """Removes files of the log that are older than the checkpoint `oldest`, oldest first, as Delta's protocol has it.

    It also removes Delta's summaries (`.crc`) of versions before the last checkpoint, which are half of
    the files that each reader lists: a summary is only compared when that very version is read.
    """
    last = max(delta_log.checkpoints(path), default=oldest)
    numbered = (
        (int(matched[1]), file)
        for file in delta_log.folder(path).iterdir()
        if (matched := _NUMBERED.match(file.name))
    )
    for version, file in sorted(numbered):
        if version < oldest or (version < last and file.name == f"{version:020}.crc"):
            file.unlink(missing_ok=True)


def _written(path: Path, version: int) -> datetime:
    """Returns the time at which the version came to this disk: versions of a copied table are as old as the copy."""
    return datetime.fromtimestamp(delta_log.commit_file(path, version).stat().st_mtime, UTC)
