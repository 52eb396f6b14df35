"""The version up to which a table was published to a target, as its follower noted it: retention keeps later ones.

The position that counts is in the target. This one may be older, which keeps a version too many.
"""

from lakehouse.declare.targets import Position
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_value, replace_file


def note(settings: Settings, target: str, position: Position) -> None:
    replace_file(
        layout.published(settings, target), {"table": position.table, "version": position.version}
    )


def noted(settings: Settings, target: str) -> Position | None:
    """Returns the position that was noted last; None if nothing was published yet."""
    meaning = f"no version is kept for {target} until its follower writes it again"
    return read_value(layout.published(settings, target), Position, meaning)
