"""Reports: tables that batch runs alone compute, each partition by itself once it has closed."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.declare.windows import Window, tumbling
from lakehouse.errors import DeclarationError
from lakehouse.ranges import PARTITION_LENGTHS, PartitionBy, Range

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX = re.compile("[a-z0-9]{1,8}")

Draw = Callable[["pa.Table", Range], str | bytes]


@dataclass(frozen=True, slots=True)
class Report:
    """What makes a table a report: the file that is drawn of each partition, if any."""

    suffix: str = ""
    draw: Draw | None = None

    def __str__(self) -> str:
        return f"a file .{self.suffix} of each partition" if self.draw else "rows alone"


def report(suffix: str = "", draw: Draw | None = None) -> Report:
    """Makes a table a report: batch runs compute each hour or day of it when its inputs have closed.

        def page(rows: pa.Table, span: Range) -> str:
            return "\\n".join(f"{row['place']}. {row['path']}" for row in rows.to_pylist())

        @table(layer="gold", partition_by="day", keys=["place"], report=report("txt", page))
        def pages_of_a_day(page_visits: DataFrame) -> DataFrame: ...

    :param suffix: the kind of file that `draw` makes, such as "html", "md" or "png"; by default there
        is no file.
    :param draw: makes the file of a partition: of its rows, an Arrow table in the order of the
        table's `keys`, and of its range of event time. It returns text or bytes.
    :raises DeclarationError: for one without the other, for a suffix that is none, and for a function
        of other than two parameters.
    """
    if bool(suffix) != (draw is not None):
        raise DeclarationError(
            f"report suffix={suffix!r}, draw={draw}: a file needs both, and rows alone neither; give both, or leave both out"
        )
    if suffix and not _SUFFIX.fullmatch(suffix):
        raise DeclarationError(
            f"report suffix={suffix!r}: up to eight small letters and digits; write for example 'html'"
        )
    if draw is not None and len(inspect.signature(draw).parameters) != 2:
        raise DeclarationError(
            f"report draw={draw.__qualname__}{inspect.signature(draw)}: it is called with the rows of a partition and its range; "
            "give it two parameters"
        )
    return Report(suffix, draw)


def partition_as_window(report: Report, window: Window | None, partition_by: PartitionBy) -> Window:
    """The window of a report, which is its partition."""
    if window is not None:
        raise DeclarationError(
            f"report={report}, window={window}: a report is computed of whole partitions; leave window out, and choose "
            "partition_by"
        )
    return tumbling(PARTITION_LENGTHS[partition_by])
