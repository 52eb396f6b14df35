"""The base of all targets: position, takeover, errors of servers, variables of declarations, columns that can be held."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeVar

from lakehouse.declare import secrets
from lakehouse.declare.targets import Position, Target
from lakehouse.errors import LakehouseError, SinkAway, SinkError
from lakehouse.sinks.formats.kinds import kind_of

if TYPE_CHECKING:
    import pyarrow as pa

E = TypeVar("E", bound=Exception)
Meaning = Literal["away", "refused", "failed"]
"""An error of a server: it may answer later, it refuses this user each time, or it is another one."""

ACCESS = "set user and password in the url by variables of the follower's environment, and start it"
_CAUSES: dict[Meaning, str] = {
    "away": "the server must take the request and did not ({}); its follower asks again, and goes on from the position",
    "refused": "the server refuses it ({}); {access}",
    "failed": "it failed ({}); the next process goes on from the position",
}


def failure(where: str, meaning: Meaning, why: object, access: str = ACCESS) -> SinkError:
    """Returns the error of a server. `access` says what gives its user access."""
    kind = SinkAway if meaning == "away" else SinkError
    return kind(f"{where}: {_CAUSES[meaning].format(why, access=access)}")


@contextmanager
def translated(
    kinds: type[E] | tuple[type[E], ...], error_of: Callable[[E], LakehouseError]
) -> Iterator[None]:
    """Raises what errors of these kinds mean for the target."""
    try:
        yield
    except kinds as err:
        raise error_of(err) from err


def replaced(named: str, left: str = "nothing of its transaction is visible") -> SinkError:
    """Returns the error of a process that was replaced. `left` says what it leaves behind."""
    return SinkError(
        f"{named}: another process has taken it over; one process writes a target, so this one ends, and {left}"
    )


def unsound(target: str, what: str) -> SinkError:
    """Returns the error of a target that has lost rows or its position, which only a comparison finds again."""
    return SinkError(
        f"target={target}: {what}; `lakehouse reconcile sink {target} --repair` sends what differs from the newest version"
    )


def position_of(target: str, place: str, text: str | bytes | None) -> Position | None:
    """Returns the position that a target keeps at `place`. Raises SinkError for anything else."""
    try:
        return None if text is None else Position.from_json(text)
    except ValueError as err:
        raise unsound(target, f"{place} holds something else than a position ({err})") from err


def filled(target: str, text: str) -> str:
    """Returns the text of a declaration with each `${NAME}` as the follower's environment has it, so that no secret is in code.

    Raises SinkError for a name that the environment lacks.
    """

    def lacking(name: str) -> SinkError:
        return SinkError(
            f"target={target}, variable={name}: the follower's environment lacks it; set it there and start the follower again"
        )

    return secrets.filled(text, lacking)


def check_columns(table: str, target: Target, columns: "pa.Schema") -> None:
    """Raises SinkError for a key that the table does not have, and for columns that the target cannot hold.

    :param columns: those of the rows that are published, without technical ones.
    """
    where = f"target={target.name}, table={table}"
    for name in target.key:
        if name not in columns.names:
            raise SinkError(
                f"{where}, key={name!r}: {table} has no such column; name one of {', '.join(columns.names)}"
            )
    for column in columns:
        for place, key in _nested_keys(column.name, column.type):
            raise SinkError(
                f"{where}, column={place}: a key of a map becomes the name of a field, so it is one value, and these are {key}; "
                "publish an array of structs, as map_entries makes it, or leave the column out"
            )
    target.check(table, columns)


def _nested_keys(place: str, type_: "pa.DataType") -> "Iterator[tuple[str, pa.DataType]]":
    """Yields the maps in a column whose keys are nested: the place and the type of its keys."""
    kind = kind_of(type_)
    if kind == "map":
        if kind_of(type_.key_type) in ("struct", "list", "map"):
            yield place, type_.key_type
        yield from _nested_keys(f"{place}.value", type_.item_type)
    elif kind == "struct":
        for field in type_:
            yield from _nested_keys(f"{place}.{field.name}", field.type)
    elif kind == "list":
        yield from _nested_keys(place, type_.value_type)
