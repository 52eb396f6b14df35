"""The same for all targets: their position, replaced processes, errors of their servers, variables of their declarations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lakehouse.declare import secrets
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


def replaced(named: str, left: str = "nothing of its transaction is visible") -> SinkError:
    """Returns the error of a process that was replaced. `left` says what it leaves behind."""
    return SinkError(
        f"{named}: another process has taken it over; one process writes a target, so this one ends, and {left}"
    )


def away(where: str, why: str) -> SinkAway:
    """Returns the error of a server that does not answer, or not now."""
    return SinkAway(f"{where}: {why}; its follower asks again, and goes on from the position")


@contextmanager
def translated(
    kinds: type[E] | tuple[type[E], ...], error_of: Callable[[E], LakehouseError]
) -> Iterator[None]:
    """Raises what errors of these kinds mean for the target."""
    try:
        yield
    except kinds as err:
        raise error_of(err) from err


def filled(target: str, text: str) -> str:
    """Returns the text of a declaration with each `${NAME}` as the follower's environment has it, so that no secret is in code.

    Raises SinkError for a name that the environment lacks.
    """

    def lacking(name: str) -> SinkError:
        return SinkError(
            f"target={target}, variable={name}: its declaration reads it from the environment of the follower, which "
            "does not have it; set it there and start the follower again"
        )

    return secrets.filled(text, lacking)
