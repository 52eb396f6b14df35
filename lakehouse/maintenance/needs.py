"""The versions of a table that readers need: those that retention must keep, and those it keeps as long as that is cheap."""

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from lakehouse.declare.catalog import Catalog
from lakehouse.declare.table import Table
from lakehouse.ranges import PARTITION_LENGTHS, floor, partition_range
from lakehouse.reconcile import invalidation
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk.layout import table_path
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.log import published_position
from lakehouse.storage.log.commit_log import frontier
from lakehouse.storage.position import checkpoint_files, checkpoints
from lakehouse.storage.position.handovers import handover_of
from lakehouse.storage.position.reference_versions import SEEN
from lakehouse.storage.versions import upgrades

_log = logging.getLogger(__name__)

OWN = "its own query"


def needed(lakehouse: Lakehouse, table: Table) -> dict[str, int]:
    """Returns the first version that each reader needs: streams, tables that have it pinned, followers, the own stream.

    A stream is known by its checkpoint, even if its table is not declared any more. Without a
    checkpoint it is known by its commit log or last commit.
    """
    found: dict[str, int] = {}
    if (made := delta_log.made(table_path(lakehouse.settings, table))) is None:
        return found
    identity = made[0]
    for checkpoint in checkpoint_files.of_all(lakehouse.settings):
        if (version := _read_up_to(checkpoint, identity)) is not None:
            found[checkpoint.parent.name] = version
    found |= _followers(lakehouse.settings, table, identity)
    for reader in lakehouse.catalog:
        begun = handover_of(lakehouse.settings, reader)
        # its stream has not started yet
        if begun and begun.input == table.name and reader.name not in found:
            found[reader.name] = begun.version
        if reader is not table and table.name not in reader.inputs:
            continue
        stands = checkpoints.standing(lakehouse.settings, reader)
        last = stands.noted or stands.written or stands.taken_back
        if last and reader.name == table.name:
            # a replayed batch looks for its commit from that version on
            found[OWN] = last.version
        elif (
            last
            and reader.name not in found
            and table.name in (read := last.inputs.get("tables", {}))
        ):
            found[reader.name] = read[table.name]["reservoirVersion"]
        elif last and table.name in (pinned := last.inputs.get("references", {})):
            found[reader.name] = pinned[table.name]
        elif last and table.name in (seen := last.inputs.get(SEEN, {})):
            # rows of its next step may have arrived with those of the last one
            found[reader.name] = min(seen[table.name])
    return found | _beside(lakehouse, table, identity)


def _beside(lakehouse: Lakehouse, table: Table, identity: str) -> dict[str, int]:
    """Returns the versions that versions beside need: after an exchange, each reads on from where it was filled."""
    found: dict[str, int] = {}
    for reader in lakehouse.catalog:
        if table.name not in reader.inputs or upgrades.upgrade(lakehouse.settings, reader) is None:
            continue
        other = upgrades.beside(lakehouse.settings, reader)
        last, begun = checkpoints.standing(other, reader).last, handover_of(other, reader)
        checkpoint = checkpoint_files.newest(other, reader)
        version = _read_up_to(checkpoint, identity) if checkpoint else None
        if version is None and last and table.name in (read := last.inputs.get("tables", {})):
            version = read[table.name]["reservoirVersion"]
        elif version is None and begun and begun.input == table.name:
            version = begun.version
        if version is not None:
            found[f"the version beside {reader.name}"] = version
    return found


def _followers(settings: Settings, table: Table, identity: str) -> dict[str, int]:
    """Returns the followers that publish the table of that id, each with the version that its target holds."""
    noted = {
        target.name: published_position.noted(settings, target.name) for target in table.publish
    }
    return {
        f"the follower of {name}": position.version
        for name, position in noted.items()
        if position and position.table == identity
    }


def wished(lakehouse: Lakehouse, table: Table) -> dict[str, int]:
    """Returns the first version of use to each reader that can do without it.

    A reconciliation that lacks versions takes all of history as changed. A table that is yet to be
    declared begins at its handover.
    """
    readers = [
        t
        for t in (*lakehouse.catalog.derived, *lakehouse.catalog.keyed)
        if t is table or table.name in t.inputs
    ]
    looked = {
        reader.name: invalidation.looked_at(lakehouse.settings, reader).get(table.name)
        for reader in readers
    }
    found = {
        f"the reconciliation of {name}": version
        for name, version in looked.items()
        if version is not None
    }
    path, ahead = table_path(lakehouse.settings, table), frontier(lakehouse.settings, table)
    many = delta_log.latest(path) - delta_log.oldest(path) >= lakehouse.settings.versions
    if many and ahead and table.kind.has_partitions:
        length = "day" if any(t.partition_by == "day" for t in readers) else table.partition_by
        found["a table yet to be declared"] = _reaching(
            lakehouse.catalog, table, path, floor(ahead, PARTITION_LENGTHS[length])
        )
    return found


def _reaching(catalog: Catalog, table: Table, path: Path, instant: datetime) -> int:
    """Returns the last kept version before any commit that may have rows from the instant on: a stream begins there."""
    column = catalog.event_time(table) if table.kind.reads_sources else ""
    for change in delta_log.changes(path, delta_log.oldest(path) - 1, column) or ():
        spans = change.spans or [
            partition_range(key, table.partition_by) for key in change.partitions
        ]
        if any(span.end > instant for span in spans):
            return change.version - 1
    return delta_log.latest(path)


def _read_up_to(checkpoint: Path, identity: str) -> int | None:
    """Returns the version from which a query reads the table of that id after a restart.

    Returns None if it reads another table.

    Spark then has its sources prepare the last committed batch once more, from the end of the batch
    before it.
    """
    begun, done = checkpoint_files.begun(checkpoint), checkpoint_files.done(checkpoint)
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
    """Returns the version of the table of that id up to which a batch reads; None if it reads another table."""
    return next(
        (offset["reservoirVersion"] for offset in offsets if offset.get("reservoirId") == identity),
        None,
    )


def _offsets(checkpoint: Path, batch: int) -> list[dict] | None:
    """Returns the offsets up to which the batch reads its sources.

    Returns None, with a message on standard error, if the file is torn.
    """
    try:
        found = [dict(json.loads(line)) for line in checkpoint_files.sources(checkpoint, batch)]
        if not found or any(
            "reservoirId" in offset and not isinstance(offset["reservoirVersion"], int)
            for offset in found
        ):
            raise ValueError("no offsets")
        return found
    except (ValueError, TypeError, KeyError) as err:
        message = f"it says what a query has read, and is torn ({err}), so the batches before it decide what is kept for it"
        remedy = f"if its table is not declared any more, remove {checkpoint.parent}"
        _log.warning(
            f"file={checkpoint_files.offsets_file(checkpoint, batch)}: {message}; {remedy}"
        )
        return None
