"""Which engine fills a table as its input grows: decided here, and nowhere else.

    ingest    a query of Spark's: its Kafka source, its checkpoint
    append    steps of our own: the function over the rows that came
    close     steps of our own: the bounded function over each range as it closes (`plan.closes_ranges`)
    versions  steps of our own: the versions of the keys that changed
    state     a query of Spark's, which keeps the state: long windows, sessions, the latest row of each key

What is stepped keeps its position in its own commits; only Spark's queries have a checkpoint beside the table.
"""

from typing import Literal

from lakehouse import plan
from lakehouse.lake import Lake
from lakehouse.table import Table

Strategy = Literal["ingest", "append", "close", "versions", "state"]


def strategy(lake: Lake, table: Table) -> Strategy:
    """How a table that is not a reference table is filled."""
    kind = lake.catalog.kind(table)
    if kind == "record":
        return "ingest"
    if kind == "history":
        return "versions"
    if kind == "state":
        return "state"
    if plan.closes_ranges(lake, plan.plan_of(lake, table, judged=False)):
        return "close"
    return "append" if kind == "row" else "state"


def is_stepped(lake: Lake, table: Table) -> bool:
    """Whether the table is filled by steps of our own, without a checkpoint of Spark's."""
    return strategy(lake, table) in ("append", "close", "versions")
