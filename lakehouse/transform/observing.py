"""Counts of a micro-batch that Spark takes while it computes."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F

from lakehouse import ranges
from lakehouse.declare.columns import REASON, RECORD
from lakehouse.ranges import BEGINNING, EPOCH, Range

if TYPE_CHECKING:
    from lakehouse.transform.plan import Plan


def observed(observation: Observation) -> dict[str, Any] | None:
    """Returns the observed values; None if Spark saw that no row can come, and removed the observation from the plan."""
    handle: Any = observation._jo
    return observation.get if handle.getRow().length() else None


def only(aggregated: DataFrame) -> Row:
    """Returns the one row of an aggregation over all rows."""
    row = aggregated.head()
    assert row is not None
    return row


def maxima(step: "Plan", partitions: Mapping[str, tuple[str, int]]) -> list[Column]:
    """Returns the latest event time of good records for each partition (topic, number), to be observed under its key.

    It only shows that there are records if event time is the time of arrival, or if a marker is declared and
    no record is marked.
    """

    def made() -> list[Column]:
        moment = F.lit(EPOCH) if step.by_ingestion else _moment(step)
        good = F.when(F.col(REASON).isNull(), moment)
        columns = []
        for key, (topic, partition) in partitions.items():
            own = F.col(f"{RECORD}_partition") == partition
            if len(step.sources) > 1:
                own = own & (F.col(f"{RECORD}_topic") == topic)
            columns.append(F.max(F.when(own, good)).alias(key))
        return columns

    return step.once(f"maxima {sorted(partitions)}", made)


def readings(step: "Plan") -> list[Column]:
    """Returns the first and last reading of a database's table in each topic, to be observed under `reading_names`."""

    def made() -> list[Column]:
        columns = []
        for source in step.sources.values():
            if source.keys:
                own = F.col(f"{RECORD}_reading")
                if len(step.sources) > 1:
                    own = F.when(F.col(f"{RECORD}_topic") == source.address, own)
                first, last = reading_names(source.address)
                columns += [F.min(own).alias(first), F.max(own).alias(last)]
        return columns

    return step.once("readings", made)


def reading_names(topic: str) -> tuple[str, str]:
    """Returns the names under which a topic's readings are observed."""
    return f"first reading of {topic}", f"last reading of {topic}"


def latest_of_values(step: "Plan", judged: DataFrame) -> dict[tuple[str, str], datetime]:
    """Returns the latest event time of good records for each topic and value of the `watermark_by` column.

    It makes its own pass over the records, and finds what `storage.log.latest_times` finds in the written rows.
    """
    (first, *others) = step.sources.values()
    topic = F.col(f"{RECORD}_topic") if others else F.lit(first.address)
    value = F.col(step.table.watermark_by).cast("string")
    good = judged.where(F.col(REASON).isNull() & value.isNotNull())
    grouped = good.groupBy(topic.alias("topic"), value.alias("value"))
    rows = grouped.agg(F.max(_moment(step)).alias("moment")).collect()
    return {(row["topic"], row["value"]): ranges.utc(row["moment"]) for row in rows}


def _moment(step: "Plan") -> Column:
    """Returns the event time by which a record moves the watermark, if it does."""
    moment = F.col(step.event_time)
    marker = step.table.marker
    return F.when(F.col(marker), moment).otherwise(F.lit(BEGINNING)) if marker else moment


def covers(touched: DataFrame) -> list[Range]:
    """Returns the event time that `touched` covers, hour by hour: files between its hours are not read."""
    hours = touched.groupBy(F.date_trunc("hour", "_from").alias("hour"))
    bounds = hours.agg(F.min("_from").alias("start"), F.max("_to").alias("end")).collect()
    spans = [Range(row["start"].astimezone(UTC), row["end"].astimezone(UTC)) for row in bounds]
    return ranges.joined(sorted(spans, key=lambda span: span.start))
