"""Whether a restore, or the promotion of an upgrade, was cut off: tables, or a table and its commit log, are of two moments
then, and nothing is to read or write them."""

from collections.abc import Iterator
from typing import Any

from lakehouse.errors import JobError, SavepointError
from lakehouse.settings import Settings
from lakehouse.storage import layout
from lakehouse.storage.files import read_json


def check(settings: Settings) -> None:
    """Raises SavepointError if a restore was cut off, JobError if the promotion of an upgrade was."""
    if restoring := begun(settings):
        raise SavepointError(said(restoring["savepoint"]))
    for table, command in promoting(settings):
        raise JobError(
            f"table={table}: its versions were being exchanged, and that was cut off, so its rows and its commit log may be of "
            f"two versions; run `lakehouse upgrade {command} {table}` again, which goes on with it"
        )


def promoting(settings: Settings) -> Iterator[tuple[str, str]]:
    """The tables whose versions are being exchanged, each with the command that does it."""
    for name in layout.upgraded(settings):
        note = upgrade(settings, name)
        if note.get("command"):
            yield name, note["command"]


def upgrade(settings: Settings, table: str) -> dict[str, Any]:
    """What is noted of a table's upgrade; nothing if there is none. Raises JobError if it cannot be read."""
    path = layout.upgrade(settings, table, "upgrade.json")
    try:
        return dict(read_json(path))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as err:
        raise JobError(
            f"file={path}: it says how far the upgrade of {table} is, and cannot be read ({err!r}); put it back from a copy, "
            f"or, if no exchange was cut off, remove the folder {path.parent} and fill the upgrade again"
        ) from err


def begun(settings: Settings) -> dict[str, str] | None:
    """The savepoint that is being restored, and the one made `before`; None if none is."""
    path = layout.restoring(settings)
    try:
        note = read_json(path)
        return {name: str(note[name]) for name in ("savepoint", "before")}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as err:
        raise SavepointError(
            f"file={path}: it says which savepoint is being restored, and cannot be read ({err!r}); remove it, and restore that "
            "savepoint once more"
        ) from err


def said(name: str) -> str:
    """What is amiss, and the remedy."""
    return (
        f"a restore of the savepoint {name} was cut off, so some tables are of that moment and others not; run "
        f"`lakehouse savepoint restore {name}` again, which goes on with it"
    )
