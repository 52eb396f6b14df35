"""`${NAME}` in a declaration is a variable in the environment of the follower, so that secrets stay out of code."""

from lakehouse.declare import secrets
from lakehouse.errors import SinkError


def filled(target: str, text: str) -> str:
    """The text with the variables as the environment has them.

    Raises SinkError for a name that the environment does not have.
    """

    def lacking(name: str) -> SinkError:
        return SinkError(
            f"target={target}, variable={name}: its declaration reads it from the environment of the follower, which "
            "does not have it; set it there and start the follower again"
        )

    return secrets.filled(text, lacking)
