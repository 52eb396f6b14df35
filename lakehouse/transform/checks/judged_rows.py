"""Judged rows, divided into good ones and those of the quarantine."""

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.columns import (
    ARRIVAL,
    ARRIVAL_TYPE,
    HEADERS,
    ORIGIN,
    PARTITION,
    REASON,
    RECORD,
    quoted,
)

if TYPE_CHECKING:
    import pyarrow

_HEADERS = f"{RECORD}_{HEADERS}"


def good(judged: DataFrame) -> DataFrame:
    rows = judged.where(F.col(REASON).isNull()).drop(REASON)
    return rows.select(*(quoted(c) for c in rows.columns if not c.startswith(RECORD)))


def bad(judged: DataFrame) -> DataFrame:
    """Returns quarantined rows in the columns of every quarantine: reason, raw value (or the row as JSON), arrival."""
    rows = judged.where(F.col(REASON).isNotNull())
    if f"{RECORD}_value" in judged.columns:
        value, key = F.col(f"{RECORD}_value"), F.col(f"{RECORD}_key")
    else:
        value = F.to_json(
            F.struct(*[quoted(c) for c in judged.columns if not c.startswith("_")])
        ).cast("binary")
        key = F.lit(None).cast("binary")
    arrival = F.col(ARRIVAL) if ARRIVAL in judged.columns else F.lit(None).cast(ARRIVAL_TYPE)
    columns = {"reason": F.col(REASON), "value": value, "key": key, ARRIVAL: arrival}
    if _HEADERS in judged.columns:
        columns[HEADERS] = F.col(_HEADERS)
    return rows.select(*(c.alias(n) for n, c in columns.items()), ORIGIN, PARTITION)


def bad_messages(judged: "pyarrow.Table") -> "pyarrow.Table | None":
    """Returns quarantined messages as `bad`, from memory, where the raw value is a column; None for other rows."""
    if f"{RECORD}_value" not in judged.column_names:
        return None
    named = {"reason": REASON, "value": f"{RECORD}_value", "key": f"{RECORD}_key"}
    named |= {name: name for name in (ARRIVAL, ORIGIN, PARTITION)}
    if _HEADERS in judged.column_names:
        named[HEADERS] = _HEADERS
    rows = judged.filter(judged[REASON].is_valid())
    return rows.select([*named.values()]).rename_columns([*named])
