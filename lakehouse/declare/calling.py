"""The call of a table's function that is under way, for the code that it calls in turn."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.errors import DeclarationError

if TYPE_CHECKING:
    from lakehouse.declare.table import Table


@dataclass
class Call:
    """One call of a table's function, and how many process functions it has applied."""

    table: "Table"
    processes: int = 0


_CALL: ContextVar[Call | None] = ContextVar("call", default=None)


@contextmanager
def called(table: "Table") -> Iterator[None]:
    """Marks the block in which the table's function is called.

    Raises DeclarationError if the table has a lasting state and the function does not keep exactly one.
    """
    call = Call(table)
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)
    if table.state_ttl and call.processes != 1:
        raise DeclarationError(
            f"table={table.name}, ttl={table.ttl}: its function applies {call.processes} process functions, and only one may "
            "have a lasting state; call process(...) once, and declare a table for each other"
        )


def current() -> Call | None:
    """Returns the call under way; None outside a table's function."""
    return _CALL.get()
