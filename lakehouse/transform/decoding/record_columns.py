"""Decoded records of topics, judged: the columns that are selected, and those that are kept of bad records."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.declare.columns import HEADERS, REASON, RECORD, quoted
from lakehouse.transform import lateness
from lakehouse.transform.checks import quality, years
from lakehouse.transform.decoding import decode

if TYPE_CHECKING:
    from lakehouse.transform.decoding.schemas import Schemas
    from lakehouse.transform.plan import Plan


def decoded(
    step: "Plan", records: Mapping[str, DataFrame], schemas: "Schemas"
) -> dict[str, DataFrame]:
    """Returns the raw records decoded, by input: those of a history with those of its topic."""
    by_input: dict[str, DataFrame] = {}
    for name, source in step.sources.items():
        if name in records:
            rows = decode.decoded(records[name], source, schemas, step.further)
            own = step.driving if source.is_history else name
            by_input[own] = by_input[own].unionByName(rows) if own in by_input else rows
    return by_input


def judging(
    step: "Plan", columns: StructType, timed: bool
) -> tuple[list[Column | str], list[Column | str]]:
    """Returns two successive selections from the function's rows."""
    # a column each: for a struct that is passed on whole, Spark would make an object for every row
    own = {name: F.col(f"{RECORD}.{name}") for name in (*decode.RAW, *step.further, "topic")}
    named = {name: column.alias(f"{RECORD}_{name}") for name, column in own.items()}
    if not timed:
        del named["timestamp"]
    if len(step.sources) == 1:
        del named["topic"]  # it is the same for all rows
    if any(source.keys for source in step.sources.values()):
        named["reading"] = F.col(f"{RECORD}.reading").alias(f"{RECORD}_reading")
    out_of_time = []
    if not step.by_ingestion:
        out_of_time = lateness.out_of_time(
            step.event_time, step.sources.values(), own["topic"], own["timestamp"]
        )
    problem = F.col(f"{RECORD}.problem")
    rules = quality.first_broken(step.rules)
    reason = F.coalesce(problem, *out_of_time, years.reason(columns), rules)
    rest = [quoted(name) for name in columns.names if name != RECORD]
    record_columns = []
    for name in named:
        column = F.col(f"{RECORD}_{name}")
        if name in ("key", "value", HEADERS):  # kept of bad rows alone
            column = F.when(F.col(REASON).isNotNull(), column)
        record_columns.append(column.alias(f"{RECORD}_{name}"))
    return [*rest, *named.values(), reason.alias(REASON)], [*rest, *record_columns, REASON]
