"""Secrets of a declaration: named in it, kept in the environment, written nowhere."""

import re
from collections.abc import Callable
from typing import Any

from lakehouse.errors import DeclarationError
from lakehouse.settings import variable

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Secret(str):
    """The value of a variable of the environment. Code that uses it counts as the same, whatever the value is."""

    name: str

    def __repr__(self) -> str:
        return f"secret({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)  # for a worker of Spark, which needs the value alone


def secret(name: str) -> Secret:
    """Returns the value of a variable of the environment, as text, to be used in a table's function.

    A new value is no change of the function: rows before and after it differ, and a reconciliation of the rows before
    computes with the new one.

        HMAC_KEY = secret("HMAC_KEY")

    :raises DeclarationError: if the environment does not have it.
    """
    value = variable(name)
    if value is None:
        raise DeclarationError(
            f"secret={name!r}: the environment must have this variable and does not; set it, for jobs and batch runs alike"
        )
    made = Secret(value)
    made.name = name
    return made


def filled(text: str, lacking: Callable[[str], Exception]) -> str:
    """The text of a declaration with each `${NAME}` as the environment has it.

    Raises what `lacking` makes of a name that the environment does not have.
    """

    def value(found: re.Match[str]) -> str:
        if (known := variable(found[1])) is None:
            raise lacking(found[1])
        return known

    return _VARIABLE.sub(value, text)
