"""Names of columns that the library adds while it computes, and takes away again: no column of a user has such a name.

What a table's function returns has no name with a leading `_` (`plan` refuses it); what it reads, and makes on the way, may.
"""

from collections.abc import Iterable

_PREFIX = "__lakehouse_"


def helper(name: str) -> str:
    """The column that holds `name`, beside columns of the user's."""
    return f"{_PREFIX}{name}"


def reserved(names: Iterable[str]) -> list[str]:
    """Those of the names that a helper column might have; Spark tells upper from lower case in no name."""
    return [name for name in names if name.lower().startswith(_PREFIX)]
