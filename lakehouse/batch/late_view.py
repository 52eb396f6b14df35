"""The rows that came too late for a table, as they are in its input."""

from pyspark.sql import DataFrame

from lakehouse.declare.columns import ORIGIN
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.storage.lake import Lake
from lakehouse.transform import lateness, plan


def late_rows(lake: Lake, table: Table) -> DataFrame:
    """The late view: the rows of the driving input that came too late for this table, with the window they missed."""
    if not lake.catalog.is_derived(table):
        raise RangeError(
            f"table={table.name}: only row and window tables have late rows; name one of these"
        )
    driving = lake.catalog.driving(table)
    step = plan.plan_of(lake, table, judged=False)
    rows = step.as_input(lake.read(driving).where(f"{ORIGIN} = 'stream'"))
    return lateness.late(lateness.flagged(rows, table, step.event_time))
