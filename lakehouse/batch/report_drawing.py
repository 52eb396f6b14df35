"""The file of a report's partition, which the user's function draws from the rows of a batch run."""

from collections.abc import Iterable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.columns import PARTITION, WINDOW, quoted
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.ranges import partition_range


def drawn(table: Table, rows: DataFrame, partitions: Iterable[str]) -> dict[str, bytes | None]:
    """Returns the file of each partition, drawn from its good rows; None if the report has no `draw`.

    Raises DeclarationError if `draw` returns neither text nor bytes.
    """
    assert table.report
    if (draw := table.report.draw) is None:
        return dict.fromkeys(partitions)
    drawings: dict[str, bytes | None] = {}
    for partition in partitions:
        of_partition = rows.where(F.col(PARTITION) == partition)
        of_partition = (
            of_partition.orderBy(*map(quoted, table.keys)) if table.keys else of_partition
        )
        shown = [quoted(c) for c in rows.columns if not c.startswith("_") and c != WINDOW]
        drawing = draw(
            of_partition.select(*shown).toArrow(), partition_range(partition, table.partition_by)
        )
        if not isinstance(drawing, str | bytes):
            raise DeclarationError(
                f"table={table.name}, report draw={draw.__qualname__}: it returned {type(drawing).__name__}; return text or bytes"
            )
        drawings[partition] = drawing.encode() if isinstance(drawing, str) else drawing
    return drawings
