"""All that is wrong with a declaration, said at once: a line for each remark."""

from collections.abc import Callable, Iterable

from lakehouse.errors import DeclarationError


def refuse(remarks: Iterable[str]) -> None:
    """Raises DeclarationError with all the remarks, if there are any."""
    if lines := list(dict.fromkeys(remarks)):
        raise DeclarationError("\n".join(lines))


def check_all(*checks: Callable[[], object]) -> None:
    """Makes every check, and raises one DeclarationError with what all of them refuse."""
    lines: list[str] = []
    for check in checks:
        try:
            check()
        except DeclarationError as err:
            lines += str(err).splitlines()
    refuse(lines)
