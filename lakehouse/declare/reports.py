"""Reports: tables that batch runs alone compute, each partition by itself once it has closed."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.errors import DeclarationError
from lakehouse.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX = re.compile("[a-z0-9]{1,8}")

Draw = Callable[["pa.Table", Range], str | bytes]


@dataclass(frozen=True, slots=True)
class Report:
    """The file that is drawn of each partition of a report, if any."""

    suffix: str = ""
    draw: Draw | None = None

    def __str__(self) -> str:
        return f"a file .{self.suffix} of each partition" if self.draw else "rows alone"


def report(suffix: str = "", draw: Draw | None = None) -> Report:
    """Returns the checked options of a report.

    :raises DeclarationError: for `suffix` without `draw` or the reverse, for an impossible suffix, and for a
        function without exactly two parameters.
    """
    if bool(suffix) != (draw is not None):
        raise DeclarationError(
            f"suffix={suffix!r}, draw={draw}: a file needs both; give both, or leave both out"
        )
    if suffix and not _SUFFIX.fullmatch(suffix):
        raise DeclarationError(
            f"suffix={suffix!r}: one to eight lower-case letters and digits; write for example 'html'"
        )
    if draw is not None and len(inspect.signature(draw).parameters) != 2:
        raise DeclarationError(
            f"draw={draw.__qualname__}{inspect.signature(draw)}: it takes a partition's rows and range; give it two parameters"
        )
    return Report(suffix, draw)
