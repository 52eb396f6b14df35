"""Secrets of a declaration: named in it, kept in the environment, written nowhere."""

import re
from collections.abc import Callable
from typing import Any

from lakehouse.errors import DeclarationError
from lakehouse.settings import variable

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Secret(str):
    """The value of an environment variable. It is no part of the code version."""

    name: str

    def __repr__(self) -> str:
        return f"secret({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)  # a worker of Spark needs the value alone


def secret(name: str) -> Secret:
    """Returns the value of an environment variable, as text, to be used in a table's function.

    A new value is no change of the function: rows before and after it differ, and a reconciliation of earlier rows
    computes with the new one.

        HMAC_KEY = secret("HMAC_KEY")

    :raises DeclarationError: if the environment does not have it.
    """
    value = variable(name)
    if value is None:
        raise DeclarationError(
            f"secret={name!r}: the environment lacks this variable; set it, for jobs and batch runs alike"
        )
    text = Secret(value)
    text.name = name
    return text


def filled(text: str, lacking: Callable[[str], Exception]) -> str:
    """Returns the text with each `${NAME}` replaced from the environment.

    Raises the error that `lacking` makes of a name that the environment lacks.
    """

    def value(match: re.Match[str]) -> str:
        if (text := variable(match[1])) is None:
            raise lacking(match[1])
        return text

    return _VARIABLE.sub(value, text)
