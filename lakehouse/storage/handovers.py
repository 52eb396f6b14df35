"""Where a table's bounded run over history ends and its live run begins, as it is kept beside the journal."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage.commits import LEDGER


@dataclass(frozen=True, slots=True)
class Seam:
    """A bounded run computes the table behind the `frontier`, whole partitions; its live run all that lies ahead of it."""

    frontier: datetime
    input: str
    version: int  # of the input: the first that the live run reads
    until: int  # of the input: the one that was complete up to the frontier
    inputs: Mapping[str, object]  # what the input had read by then: offsets of topics, versions of tables
    fingerprint: str
    at: datetime


def seam_of(settings: Settings, table: Table) -> Seam | None:
    """Where the table's live run begins, if not with all that its input has (`lakehouse.stream.handover`)."""
    path = seam_path(settings, table)
    if not path.exists():
        return None
    try:
        kept = json.loads(path.read_text())
        return Seam(**kept | {name: datetime.fromisoformat(kept[name]) for name in ("frontier", "at")})
    except (ValueError, TypeError, KeyError) as err:
        raise JobError(
            f"table={table.name}, file={path}: it holds the seam at which the live run begins, and cannot be read ({err!r}); "
            "restore it from a copy: without it the live run would write what batch runs have written"
        ) from err


def seam_path(settings: Settings, table: Table) -> Path:
    return settings.root / LEDGER / f"{table.name}.seam.json"
