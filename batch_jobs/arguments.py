"""Arguments that the commands of batch jobs share, and the lakehouse that the commands are asked about."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli import opening

if TYPE_CHECKING:
    from lakehouse.ranges import Range
    from lakehouse.storage.lakehouse import Lakehouse

Name = Annotated[
    str, typer.Argument(metavar="TABLE", help="A derived table, as `lakehouse table list` shows it")
]
Start = Annotated[
    str | None, typer.Option(help="First instant of the range, ISO 8601; UTC if it names no zone")
]
End = Annotated[
    str | None, typer.Option(help="End of the range, exclusive; at or before the frontier")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing")]


def asked(
    start: str | None, end: str | None
) -> "tuple[Lakehouse, datetime | None, datetime | None]":
    """Returns the lakehouse of the environment, and the two ends of a range. Raises RangeError for no instant."""
    from lakehouse.ranges import parse_instant

    first = parse_instant(start, "start") if start else None
    last = parse_instant(end, "end") if end else None
    return opening.lakehouse(), first, last


def asked_range(start: str | None, end: str | None) -> "tuple[Lakehouse, Range | None]":
    """Returns the lakehouse of the environment, and the range between two ends; None without ends. Raises RangeError."""
    from lakehouse.ranges import optional_range

    lakehouse, first, last = asked(start, end)
    return lakehouse, optional_range(first, last)
