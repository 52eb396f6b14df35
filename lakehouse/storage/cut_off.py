"""Whether a restore was cut off: tables of two moments are in one lakehouse then, and nothing is to read or write them."""

from lakehouse.errors import SavepointError
from lakehouse.settings import Settings
from lakehouse.storage import layout
from lakehouse.storage.files import read_json


def check(settings: Settings) -> None:
    """Raises SavepointError if a restore was cut off."""
    if found := begun(settings):
        raise SavepointError(said(found["savepoint"]))


def begun(settings: Settings) -> dict[str, str] | None:
    """The savepoint that is being restored, and the one made `before`; None if none is."""
    path = layout.restoring(settings)
    try:
        found = read_json(path)
        return {name: str(found[name]) for name in ("savepoint", "before")}
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
