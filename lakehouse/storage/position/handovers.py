"""Where a table's batch run over history ends and its stream begins, as it is kept beside the commit log."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from lakehouse.declare.table import Table
from lakehouse.errors import JobError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_json
from lakehouse.storage.disk.typed_values import typed


@dataclass(frozen=True, slots=True)
class Handover:
    """A batch run computes the table behind the `frontier`, whole partitions.

    Its stream all that lies ahead of it.
    """

    frontier: datetime
    input: str
    version: int  # of the input: the first that the stream reads
    until: int  # of the input: the one that was complete up to the frontier
    # what the input had read by then: offsets of topics, versions of tables
    inputs: Mapping[str, object]
    code_version: str
    at: datetime


def handover_of(settings: Settings, table: Table) -> Handover | None:
    """Where the table's stream begins, if not with all that its input has (`lakehouse.stream.handover`)."""
    path = layout.note(settings, table, "handover.json")
    if not path.exists():
        return None
    try:
        return typed(Handover, read_json(path))
    except (ValueError, TypeError) as err:
        raise JobError(
            f"table={table.name}, file={path}: it holds the handover at which the stream begins, and cannot be read ({err!r}); "
            "restore it from a copy: without it the stream would write what batch runs have written"
        ) from err
