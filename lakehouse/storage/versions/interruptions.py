"""Checks for a restore, or the promotion of an upgrade, that was cut off: tables, or a table and its commit log, are of two
moments then, and nothing may read or write them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lakehouse.errors import JobError, SavepointError
from lakehouse.ranges import Range, optional_range, parse_instant
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_json
from lakehouse.storage.disk.typed_values import typed

State = Literal["filling", "filled", "promoted", "rolled back"]


@dataclass(frozen=True, slots=True)
class Restoring:
    """The savepoint that is being restored, and the one made before the restore."""

    savepoint: str
    before: str


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The state of a table's upgrade.

    :param state: `promoted`: the previous version is beside the table; else the new one is.
    :param at: ISO 8601 UTC: when it became so.
    :param since: ISO 8601 UTC: since when the version beside is there; an exchange puts another one there.
    :param code_version: that of the declaration with which the version beside was filled.
    :param compared: the rows of both, and how many differ, in the range that both have closed.
    :param may_differ: the two instants between which rows may differ; empty if they may anywhere.
    :param refused: why it cannot be promoted; empty if it can.
    :param command: the command that exchanges the versions now, or was cut off; empty if none does.
    :param generation: the last generation of the table's stream before the exchange.
    """

    state: State
    at: str
    code_version: str
    compared: Mapping[str, Any] = field(default_factory=dict)
    may_differ: Sequence[str] = ()
    refused: str = ""
    command: str = ""
    generation: int = 0
    since: str = ""

    @property
    def within(self) -> Range | None:
        """Returns the only range in which rows may differ; None if they may anywhere."""
        return optional_range(*map(parse_instant, self.may_differ)) if self.may_differ else None


def check(settings: Settings) -> None:
    """Raises SavepointError if a restore was cut off, JobError if the promotion of an upgrade was cut off."""
    if restoring := begun(settings):
        raise SavepointError(said(restoring.savepoint))
    for table, command in promoting(settings):
        raise JobError(
            f"table={table}: its versions were being exchanged, and that was cut off, so its rows and its commit log may be of "
            f"two versions; run `lakehouse upgrade {command} {table}` again, which goes on with it"
        )


def promoting(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields the tables whose versions are being exchanged, each with the command that does it."""
    for name in layout.upgraded(settings):
        note = upgrade(settings, name)
        if note and note.command:
            yield name, note.command


def upgrade(settings: Settings, table: str) -> Upgrade | None:
    """Returns the state of a table's upgrade; None if there is none. Raises JobError if it cannot be read."""
    path = layout.upgrade(settings, table, "upgrade.json")
    try:
        return typed(Upgrade, read_json(path))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as err:
        raise JobError(
            f"file={path}: it says how far the upgrade of {table} is, and cannot be read ({err!r}); put it back from a copy, "
            f"or, if no exchange was cut off, remove the folder {path.parent} and fill the upgrade again"
        ) from err


def begun(settings: Settings) -> Restoring | None:
    """Returns the restore that has begun and not ended; None if there is none. Raises SavepointError if its note is damaged."""
    path = layout.restoring(settings)
    try:
        return typed(Restoring, read_json(path))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as err:
        raise SavepointError(
            f"file={path}: it says which savepoint is being restored, and cannot be read ({err!r}); remove it, and restore that "
            "savepoint once more"
        ) from err


def said(name: str) -> str:
    """Returns the message that a restore was cut off, with the remedy."""
    return (
        f"a restore of the savepoint {name} was cut off, so some tables are of that moment and others not; run "
        f"`lakehouse savepoint restore {name}` again, which goes on with it"
    )
