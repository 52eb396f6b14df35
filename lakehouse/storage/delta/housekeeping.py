"""Compaction and removal of files and versions of a table, beside the stream that writes it, without a JVM.

The caller decides which versions have to stay (`maintenance`).
"""

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lakehouse.declare.columns import PARTITION
from lakehouse.errors import CommitError
from lakehouse.storage.delta import deletion_vector_files, delta_log
from lakehouse.storage.delta.delta_log import open_table

# files of a log, with the checksums that Hadoop puts beside them
_NUMBERED = re.compile(r"\.?(\d{20})\.")


def compact(path: Path, partitions: Sequence[str]) -> None:
    """Compacts the small files of these partitions ("" for a table without partitions).

    Raises CommitError if another run rewrote them meanwhile. The table stays as that run left it.
    """
    from deltalake.exceptions import CommitFailedError

    try:
        _compact(open_table(path), partitions)
    except CommitFailedError as err:
        raise CommitError(
            f"table={path.name}: another run rewrote what was being compacted ({err}); nothing was changed, run this again"
        ) from err


def _compact(table, partitions: Sequence[str]) -> None:
    from deltalake import WriterProperties

    chosen = [(PARTITION, "in", list(partitions))] if list(partitions) != [""] else None
    # one core, because the stream goes on; better compression costs nothing where it is done once
    table.optimize.compact(
        chosen,
        max_concurrent_tasks=1,
        writer_properties=WriterProperties(compression="ZSTD"),
        post_commithook_properties=_commit_only(),
    )


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
