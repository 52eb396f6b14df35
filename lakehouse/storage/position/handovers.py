"""The handover, at which a table's batch run over history ends and its stream begins, as kept beside the commit log."""

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
    """The instant `frontier`: a batch run computes the whole partitions behind it.

    The stream computes all that lies ahead of it.
    """

    frontier: datetime
    input: str
    version: int  # the first version of the input that the stream reads
    until: int  # the version of the input that was complete up to the frontier
    # the position of the input at that version: offsets of topics, versions of tables
    inputs: Mapping[str, object]
    code_version: str
    at: datetime


def handover_of(settings: Settings, table: Table) -> Handover | None:
    """Returns the table's handover; None if its stream begins with all that its input has (`lakehouse.stream.handover`)."""
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
