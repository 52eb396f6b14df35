"""Every fault of a declaration in one error: a line for each remark."""

from collections.abc import Callable, Iterable

from lakehouse.errors import DeclarationError


def refuse(remarks: Iterable[str]) -> None:
    """Raises DeclarationError with all the remarks, if there are any."""
    if lines := list(dict.fromkeys(remarks)):
        raise DeclarationError("\n".join(lines))


def check_all(*checks: Callable[[], object]) -> None:
    """Runs every check, and raises one DeclarationError with all refusals."""
    lines: list[str] = []
    for check in checks:
        try:
            check()
        except DeclarationError as err:
            lines += str(err).splitlines()
    refuse(lines)
