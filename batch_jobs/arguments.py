"""What the commands of batch jobs share: their arguments, and the lakehouse that they are asked about."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.settings import Settings, from_environment

if TYPE_CHECKING:
    from lakehouse.declare.catalog import Catalog

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
) -> "tuple[Settings, Catalog, datetime | None, datetime | None]":
    """The settings, their tables, and the two ends of a range.

    Raises RangeError for what is no instant.
    """
    from lakehouse.declare.catalog import load
    from lakehouse.ranges import parse_instant

    settings = from_environment()
    first = parse_instant(start, "start") if start else None
    last = parse_instant(end, "end") if end else None
    return settings, load(settings), first, last
