"""What a record has put aside, run through its parser and function again."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import plan
from lakehouse.event_time import ARRIVAL, INGESTION, PARTITION
from lakehouse.lake import Lake
from lakehouse.sources import RECORD
from lakehouse.table import Table


def put_aside(lake: Lake, record: Table, *, judged: bool = True) -> DataFrame:
    """The rows of the quarantine by the present declaration: the record's columns, the reason, `_arrival`, `_partition`.

    Of a record's own timestamp, by which event times too far ahead are found, the time of arrival takes the place. With
    judged=False expectations are left out.
    """
    step, stored = plan.plan_of(lake, record, judged=judged), lake.read(record, side="quarantine")
    position = {name: F.col(f"{ARRIVAL}.{name}") for name in ("partition", "offset")}
    parts = []
    for name, source in step.topics.items():
        own = stored.where(F.col(f"{ARRIVAL}.topic") == source.topic)
        raw = own.select("key", "value", *(c.alias(n) for n, c in position.items()), F.col(f"{ARRIVAL}.time").alias("timestamp"))
        rows = step.record({n: raw if n == name else raw.limit(0) for n in step.topics})
        arrived = own.select(*(c.alias(f"{RECORD}_{n}") for n, c in position.items()), ARRIVAL, PARTITION)
        parts.append(rows.join(arrived, [f"{RECORD}_{n}" for n in position]))
    found = parts[0]
    for part in parts[1:]:
        found = found.unionByName(part)
    return found.withColumn(INGESTION, F.col(f"{ARRIVAL}.time")) if step.by_ingestion else found
