"""The versions of a table that readers need: those that retention must keep, and those it keeps as long as that is cheap."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.logs import warn_once
from lakehouse.ranges import PARTITION_LENGTHS, floor, partition_range, text
from lakehouse.reconcile import invalidation
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.delta.delta_log import Change
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import published_position
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.position import checkpoint_files, checkpoints
from lakehouse.storage.position.handovers import handover_of
from lakehouse.storage.position.reference_versions import SEEN
from lakehouse.storage.versions import upgrades

_log = logging.getLogger(__name__)

OWN = "its own query"
# times `settings.versions`: no more are kept for a table yet to be declared. More than an hour of commits, one a second
_YET = 4


def needed(lakehouse: Lakehouse, table: Table) -> dict[str, int]:
    """Returns the first version that each reader needs: streams, tables that have it pinned, followers, the own stream.

    A stream is known by its checkpoint, even if its table is not declared any more. Without a
    checkpoint it is known by its commit log or last commit.
    """
    versions: dict[str, int] = {}
    made = delta_log.made(lakehouse.path(table))
    if made is None:
        return versions
    identity = made[0]
    for checkpoint in checkpoint_files.of_all(lakehouse.settings):
        if (version := _read_up_to(checkpoint, identity)) is not None:
            versions[checkpoint.parent.name] = version
    versions |= _followers(lakehouse.settings, table, identity)
    for reader in lakehouse.catalog:
        handover = handover_of(lakehouse.settings, reader)
        # its stream has not started yet
        if handover and handover.input == table.name and reader.name not in versions:
            versions[reader.name] = handover.version
        if reader is not table and table.name not in reader.inputs:
            continue
        stands = checkpoints.standing(lakehouse.settings, reader)
        last = stands.noted or stands.written or stands.taken_back
        if last is None:
            continue
        read, pinned, seen = (last.inputs.get(k, {}) for k in ("tables", "references", SEEN))
        if reader.name == table.name:
            # a replayed batch looks for its commit from that version on
            versions[OWN] = last.version
        elif reader.name not in versions and table.name in read:
            versions[reader.name] = read[table.name]["reservoirVersion"]
        elif table.name in pinned:
            versions[reader.name] = pinned[table.name]
        elif table.name in seen:
            # rows of its next step may have arrived with those of the last one
            versions[reader.name] = min(seen[table.name])
    return versions | _beside(lakehouse, table, identity)


def _beside(lakehouse: Lakehouse, table: Table, identity: str) -> dict[str, int]:
    """Returns the versions that versions beside need: after an exchange, each reads on from where it was filled."""
    versions: dict[str, int] = {}
    for reader in lakehouse.catalog:
        if table.name not in reader.inputs or upgrades.upgrade(lakehouse.settings, reader) is None:
            continue
        other = upgrades.beside(lakehouse.settings, reader)
        last, handover = checkpoints.standing(other, reader).last, handover_of(other, reader)
        checkpoint = checkpoint_files.newest(other, reader)
        version = _read_up_to(checkpoint, identity) if checkpoint else None
        if version is None and last and table.name in (read := last.inputs.get("tables", {})):
            version = read[table.name]["reservoirVersion"]
        elif version is None and handover and handover.input == table.name:
            version = handover.version
        if version is not None:
            versions[f"the version beside {reader.name}"] = version
    return versions


def _followers(settings: Settings, table: Table, identity: str) -> dict[str, int]:
    """Returns the followers that publish the table of that id, each with the version that its target holds."""
    versions = {}
    for target in table.publish:
        position = published_position.noted(settings, target.name)
        if position and position.table == identity:
            versions[f"the follower of {target.name}"] = position.version
    return versions


def wished(lakehouse: Lakehouse, table: Table) -> dict[str, int]:
    """Returns the first version of use to each reader that can do without it.

    A reconciliation that lacks versions takes all of history as changed. A table that is yet to be
    declared begins at its handover. One that is declared too late for that begins at the next one.
    """
    compared = (*lakehouse.catalog.derived, *lakehouse.catalog.keyed)
    readers = [t for t in compared if t is table or table.name in t.inputs]
    versions = {}
    for reader in readers:
        looked_at = invalidation.looked_at(lakehouse.settings, reader)
        if table.name in looked_at:
            versions[f"the reconciliation of {reader.name}"] = looked_at[table.name]
    ahead = frontier(lakehouse.settings, table)
    if ahead and table.kind.has_partitions:
        daily = any(t.partition_by == "day" for t in readers)
        lengths = dict.fromkeys([*(["day"] if daily else []), table.partition_by])
        starts = (floor(ahead, PARTITION_LENGTHS[length]) for length in lengths)
        version = _of_undeclared(lakehouse, table, starts)
        if version is not None:
            versions["a table yet to be declared"] = version
    return versions


def _of_undeclared(lakehouse: Lakehouse, table: Table, starts: Iterable[datetime]) -> int | None:
    """Returns the version at which a table that is declared now begins: at the first start that is near enough, if any is.

    That is the last version before any commit that may have rows from the start on.
    """
    path, most = lakehouse.path(table), _YET * lakehouse.settings.versions
    oldest, latest = delta_log.oldest(path), delta_log.latest(path)
    if latest - oldest < lakehouse.settings.versions:
        return None
    column = lakehouse.catalog.event_time(table) if table.kind.reads_sources else ""
    nearest = max(oldest, latest - most)
    changes = delta_log.changes(path, nearest - 1, column) or []
    for start in starts:
        reaching = (change.version for change in changes if _reaches(table, change, start))
        version = next(reaching, latest + 1) - 1
        if version >= nearest:
            return version
        if nearest > oldest:  # else they are gone already
            message = (
                f"table={table.name}, versions={most:,}: a table that is declared now and begins at {text(start)} needs more, "
                "and no more are kept for that; declare it in the next partition, or set LAKEHOUSE_VERSIONS higher"
            )
            warn_once(_log, message)
    return None


def _reaches(table: Table, change: Change, instant: datetime) -> bool:
    spans = change.spans or (partition_range(key, table.partition_by) for key in change.partitions)
    return any(span.end > instant for span in spans)


def _read_up_to(checkpoint: Path, identity: str) -> int | None:
    """Returns the version from which a query reads the table of that id after a restart; None if it reads another table.

    Spark then has its sources prepare the last committed batch once more, from the end of the batch
    before it.
    """
    batches, done = checkpoint_files.begun(checkpoint), checkpoint_files.done(checkpoint)
    readable = (_offsets(checkpoint, batch) for batch in reversed(batches))
    last = next((offsets for offsets in readable if offsets is not None), [])
    before = _offsets(checkpoint, done[-1] - 1) if done and done[-1] - 1 in batches else None
    return None if _position(last, identity) is None else _position(before or [], identity) or 0


def _position(offsets: Sequence[Mapping], identity: str) -> int | None:
    """Returns the version of the table of that id up to which a batch reads; None if it reads another table."""
    own = (offset for offset in offsets if offset.get("reservoirId") == identity)
    return next((offset["reservoirVersion"] for offset in own), None)


def _offsets(checkpoint: Path, batch: int) -> list[dict] | None:
    """Returns the offsets up to which the batch reads its sources; None, with a log message, if the file is torn."""
    try:
        lines = checkpoint_files.sources(checkpoint, batch)
        offsets = [dict(json.loads(line)) for line in lines]
        of_delta = [offset["reservoirVersion"] for offset in offsets if "reservoirId" in offset]
        if not offsets or not all(isinstance(version, int) for version in of_delta):
            raise ValueError("no offsets")
        return offsets
    except (ValueError, TypeError, KeyError) as err:
        message = f"it says what a query has read, and is torn ({err}), so the batches before it decide what is kept for it"
        remedy = f"if its table is not declared any more, remove {checkpoint.parent}"
        _log.warning(
            f"file={checkpoint_files.offsets_file(checkpoint, batch)}: {message}; {remedy}"
        )
        return None
