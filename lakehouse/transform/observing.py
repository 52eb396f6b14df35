"""What of a micro-batch is counted while Spark computes it."""

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
    """What was observed.

    None if Spark saw that no row can come, and removed the observation with the rest of the plan.
    """
    handle: Any = observation._jo
    return observation.get if handle.getRow().length() else None


def only(aggregated: DataFrame) -> Row:
    """The one row of an aggregation over all rows."""
    row = aggregated.head()
    assert row is not None
    return row


def maxima(step: "Plan", partitions: Mapping[str, tuple[str, int]]) -> list[Column]:
    """The latest event time among the good records of each partition (topic, number), to be observed by its key.

    Where that is the time of arrival, or a record is not marked and a marker is declared: an instant
    that says no more than that there are some.
    """

    def made() -> list[Column]:
        moment = F.lit(EPOCH) if step.by_ingestion else _moment(step)
        good = F.when(F.col(REASON).isNull(), moment)
        return [
            F.max(F.when(_of_partition(step, *where), good)).alias(key)
            for key, where in partitions.items()
        ]

    return step.once(f"maxima {sorted(partitions)}", made)


def readings(step: "Plan") -> list[Column]:
    """Of each topic of change events the first and the last reading of the database's table among its records, to be observed.

    By the names of `reading_names`.
    """

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
    """What is observed of a topic's readings."""
    return f"first reading of {topic}", f"last reading of {topic}"


def latest_of_values(step: "Plan", judged: DataFrame) -> dict[tuple[str, str], datetime]:
    """The latest event time among the good records of each value in each topic, of the column that the watermark goes by.

    By a pass over the records of its own: as `storage.log.latest_times` finds it in what was written.
    """
    (first, *others) = step.sources.values()
    topic = F.col(f"{RECORD}_topic") if others else F.lit(first.address)
    value = F.col(step.table.watermark_by).cast("string")
    good = judged.where(F.col(REASON).isNull() & value.isNotNull())
    grouped = good.groupBy(topic.alias("topic"), value.alias("value"))
    rows = grouped.agg(F.max(_moment(step)).alias("moment")).collect()
    return {(row["topic"], row["value"]): ranges.utc(row["moment"]) for row in rows}


def _moment(step: "Plan") -> Column:
    """The event time by which a record moves the watermark, if it does."""
    moment, marker = F.col(step.event_time), step.table.marker
    return F.when(F.col(marker), moment).otherwise(F.lit(BEGINNING)) if marker else moment


def _of_partition(step: "Plan", topic: str, partition: int) -> Column:
    """Whether a judged record came from that partition."""
    matches = F.col(f"{RECORD}_partition") == partition
    return matches if len(step.sources) == 1 else matches & (F.col(f"{RECORD}_topic") == topic)


def covers(touched: DataFrame) -> list[Range]:
    """The event time that `touched` covers, hour by hour: files between its hours are not read."""
    hours = touched.groupBy(F.date_trunc("hour", "_from").alias("hour"))
    bounds = hours.agg(F.min("_from").alias("start"), F.max("_to").alias("end")).collect()
    spans = (Range(each["start"].astimezone(UTC), each["end"].astimezone(UTC)) for each in bounds)
    return ranges.joined(sorted(spans, key=lambda each: each.start))
