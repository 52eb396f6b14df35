"""`${NAME}` in a declaration is a variable in the environment of the follower, so that secrets stay out of code."""

import re

from lakehouse.errors import SinkError
from lakehouse.settings import variable

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def filled(target: str, text: str) -> str:
    """The text with the variables as the environment has them.

    Raises SinkError for a name that the environment does not have.
    """

    def value(found: re.Match[str]) -> str:
        if (known := variable(found[1])) is None:
            raise SinkError(
                f"target={target}, variable={found[1]}: its declaration reads it from the environment of the follower, which "
                "does not have it; set it there and start the follower again"
            )
        return known

    return _VARIABLE.sub(value, text)
