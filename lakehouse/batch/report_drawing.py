"""The file of a report's partition, drawn by the user's function of the rows that a batch run has computed."""

from collections.abc import Iterable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.columns import PARTITION, WINDOW, quoted
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError
from lakehouse.ranges import partition_range


def drawn(table: Table, rows: DataFrame, partitions: Iterable[str]) -> dict[str, bytes | None]:
    """What the report's function makes of each partition, from good rows of all; None where it has no such function.

    Raises DeclarationError if that is neither text nor bytes.
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
        made = draw(
            of_partition.select(*shown).toArrow(), partition_range(partition, table.partition_by)
        )
        if not isinstance(made, str | bytes):
            raise DeclarationError(
                f"table={table.name}, report draw={draw.__qualname__}: it returned {type(made).__name__}; return text or bytes"
            )
        drawings[partition] = made.encode() if isinstance(made, str) else made
    return drawings
