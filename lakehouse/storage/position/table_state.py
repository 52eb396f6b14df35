"""The state of a table on disk, read once when its stream starts and handed down.

Whoever changes it, by a new generation or a handover, reads it again and hands the new one down.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.ranges import past_beginning
from lakehouse.settings import Settings
from lakehouse.storage.delta import delta_log
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_json
from lakehouse.storage.disk.typed_values import typed
from lakehouse.storage.lakehouse import Lakehouse
from lakehouse.storage.position import checkpoints
from lakehouse.storage.position.checkpoints import Standing
from lakehouse.storage.position.handovers import Handover, handover_of


@dataclass(frozen=True, slots=True)
class BegunWith:
    """The declaration that a table's streaming query began with, and its handover as JSON, if it has one."""

    at: str
    declaration: dict[str, str]
    handover: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TableState:
    """The position of a table, its handover, and the note of the declaration that its stream started with."""

    table: Table
    standing: Standing
    handover: Handover | None  # None: the stream begins with all that its input has
    note: BegunWith | None
    is_bound: bool  # the stream must continue under the noted declaration


def read(lakehouse: Lakehouse, table: Table) -> TableState:
    """Returns the state now. Raises DeclarationError or JobError for a note that cannot be read."""
    settings = lakehouse.settings
    standing, note = checkpoints.standing(settings, table), noted(settings, table)
    bound = binds(lakehouse, table, note, standing)
    return TableState(table, standing, handover_of(settings, table), note, bound)


def binding(lakehouse: Lakehouse, table: Table) -> dict[str, str] | None:
    """Returns the declaration under which the table's stream must continue.

    Returns None if it is not known, or if the stream has read nothing, or nothing is left of it.
    """
    if (note := noted(lakehouse.settings, table)) is None:
        return None  # of a table that has never started no log is read
    standing = checkpoints.standing(lakehouse.settings, table)
    return note.declaration if binds(lakehouse, table, note, standing) else None


def binds(lakehouse: Lakehouse, table: Table, note: BegunWith | None, standing: Standing) -> bool:
    """Returns True if there is a note, and the stream has read a row under it, as before a first window closes.

    If False, nothing is lost or doubled when the stream begins again, and no reader has seen it advance. A position in
    tables other than those that it follows now gives True as well, because it means nothing in these.
    """
    if note is None or standing.pending:
        return note is not None
    if last := standing.noted:
        followed = {read.name for read in lakehouse.catalog.followed_inputs(table)}
        # the newest line most often answers, and has been read
        lines = chain([last], lakehouse.commit_log(table).by_stream())
        if {*last.inputs.get("tables", followed)} != followed or any(
            past_beginning(line.frontier) or line.arrived for line in lines
        ):
            return True
    # a removed table that is to be filled again needs no fitting declaration
    folder = layout.layer_path(lakehouse.settings, note.declaration["layer"], table.name)
    sides = (folder, folder.with_name(f"{folder.name}__quarantine"))
    return any(delta_log.oldest(side) or delta_log.rows_from(side) is not None for side in sides)


def note_path(settings: Settings, table: Table) -> Path:
    return layout.note(settings, table, "declared.json")


def noted(settings: Settings, table: Table) -> BegunWith | None:
    """Returns the note in the file; None if there is none. Raises DeclarationError if it cannot be read."""
    path = note_path(settings, table)
    try:
        note = typed(BegunWith, read_json(path))
        if "layer" not in note.declaration:
            raise TypeError("declaration.layer is not there")
        return note
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as err:
        raise DeclarationError(
            f"table={table.name}, file={path}: it says what the table's streaming query began with, and cannot be read "
            f"({err!r}); restore it, or remove it, and the present declaration counts as that one"
        ) from err
