"""Whether a lakehouse is a fork, so that two of them do not publish to one target."""

from collections.abc import Iterable
from pathlib import Path

from lakehouse.errors import SinkError
from lakehouse.settings import Settings
from lakehouse.storage import layout
from lakehouse.storage.files import read_value, replace_file


def note(settings: Settings, of: Path, targets: Iterable[str]) -> None:
    """Keeps that this lakehouse is a fork of the one in that root, which publishes to these targets."""
    content = {"of": str(of.absolute()), "targets": sorted(targets)}
    replace_file(layout.forked(settings), content)


def check(settings: Settings, target: str) -> None:
    """Raises SinkError for a target of the lakehouse that this one was forked from: a target has one writer."""
    path = layout.forked(settings)
    meaning = "this fork publishes to whatever its tables declare, also where the other one does"
    forked = read_value(path, lambda given: (str(given["of"]), list(given["targets"])), meaning)
    if forked and target in forked[1]:
        raise SinkError(
            f"target={target}: the lakehouse in {forked[0]}, of which this one is a fork, publishes to it, and a target has one "
            f"writer; declare another one here, or stop the follower there and remove {path}, and this one takes over"
        )
