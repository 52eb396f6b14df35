"""What is the same for all targets that hold rows: their position, whoever takes them over, errors of their servers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lakehouse.declare.targets import Position
from lakehouse.errors import LakehouseError, SinkAway, SinkError

E = TypeVar("E", bound=Exception)


def position_of(target: str, place: str, text: str | bytes | None) -> Position | None:
    """Returns the position that a target keeps at `place`. Raises SinkError for anything else."""
    try:
        return None if text is None else Position.from_json(text)
    except ValueError as err:
        raise SinkError(
            f"target={target}: {place} holds something else than a position ({err}); `lakehouse reconcile sink {target} "
            "--repair` writes a new one"
        ) from err


def taken_over(named: str, left: str = "nothing of its transaction is visible") -> SinkError:
    """The error of a process that was replaced, and what it has `left`."""
    return SinkError(
        f"{named}: another process has taken it over; one process writes a target, so this one ends, and {left}"
    )


def away(where: str, why: str) -> SinkAway:
    """The error of a server that does not answer, or not now."""
    return SinkAway(f"{where}: {why}; its follower asks again, and goes on from the position")


@contextmanager
def translated(
    kinds: type[E] | tuple[type[E], ...], error_of: Callable[[E], LakehouseError]
) -> Iterator[None]:
    """Raises, for errors of these kinds, what they mean for the target."""
    try:
        yield
    except kinds as err:
        raise error_of(err) from err
