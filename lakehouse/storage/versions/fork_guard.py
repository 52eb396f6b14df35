"""The note that a lakehouse is a fork, so that two of them do not publish to one target."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from lakehouse.errors import SinkError
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.files import read_value, replace_file


@dataclass(frozen=True, slots=True)
class Fork:
    """The root of the lakehouse that this one was forked from, and the targets that the other one publishes to."""

    of: str
    targets: tuple[str, ...]


def note(settings: Settings, of: Path, targets: Iterable[str]) -> None:
    """Notes that this lakehouse is a fork of the one in that root, which publishes to these targets."""
    replace_file(layout.forked(settings), asdict(Fork(str(of.absolute()), tuple(sorted(targets)))))


def check(settings: Settings, target: str) -> None:
    """Raises SinkError for a target of the lakehouse that this one was forked from: a target has one writer."""
    path = layout.forked(settings)
    meaning = "this fork publishes to whatever its tables declare, also where the other one does"
    fork = read_value(path, Fork, meaning)
    if fork and target in fork.targets:
        raise SinkError(
            f"target={target}: the lakehouse in {fork.of}, of which this one is a fork, publishes to it, and a target has one "
            f"writer; declare another one here, or stop the follower there and remove {path}, and this one takes over"
        )
