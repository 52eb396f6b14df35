"""The quarantined rows of an ingest table, run through its parser and function again."""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.declare.columns import ARRIVAL, HEADERS, INGESTION, PARTITION, PLACE, RECORD
from lakehouse.declare.table import Table
from lakehouse.errors import RangeError
from lakehouse.storage.delta import delta_log
from lakehouse.storage.session import Session
from lakehouse.transform import arrival_fields
from lakehouse.transform.decoding import schemas
from lakehouse.transform.plan import Plan

# with the time, because a topic that was made again repeats its offsets
POSITION = (*arrival_fields.POSITION, "time")


def arrival_position(rows: DataFrame) -> Column:
    """Returns the place of each row's arrival, as one column `_position`."""
    return F.struct(*arrival_fields.places(rows, POSITION)).alias("_position")


def without(rows: DataFrame, gone: DataFrame) -> DataFrame:
    """Returns the rows whose `arrival_position` is not in the column `_position` of `gone`."""
    placed = rows.withColumn("_position", arrival_position(rows))
    return placed.join(gone, "_position", "left_anti").drop("_position")


def quarantined_rows(session: Session, step: Plan) -> DataFrame:
    """Returns the quarantined rows as the present declaration judges them: `_arrival` and `_partition` with the columns.

    The time of arrival replaces a record's own timestamp in the check for event times too far ahead.
    Raises RangeError if the quarantine is gone, RegistryAway if the registry is asked for a schema and does not answer.
    """
    ingest = step.table
    stored = _quarantine(session, ingest)
    # with the time, because a topic that was made again repeats its offsets
    of = {"partition": "partition", "offset": "offset", "timestamp": "time"}
    if PLACE in step.further:
        of[PLACE] = PLACE
    position = {name: F.col(f"{ARRIVAL}.{there}") for name, there in of.items()}
    sent = ["key", "value", *(name for name in (HEADERS,) if name in step.further)]
    parts = []
    for name, source in step.sources.items():
        own = stored.where(F.col(f"{ARRIVAL}.topic") == source.address)
        raw = own.select(*sent, *(c.alias(n) for n, c in position.items()))
        records = {n: raw if n == name else raw.limit(0) for n in step.sources}
        written_by = schemas.of_records(session, ingest, {name: source}, records)
        rows = step.ingest(records, written_by, timed=True)
        arrived = own.select(
            *(c.alias(f"{RECORD}_{n}") for n, c in position.items()), ARRIVAL, PARTITION
        )
        parts.append(
            rows.join(arrived, [f"{RECORD}_{n}" for n in position]).drop(f"{RECORD}_timestamp")
        )
    found = reduce(DataFrame.unionByName, parts)
    return found.withColumn(INGESTION, F.col(f"{ARRIVAL}.time")) if step.by_ingestion else found


def of_other_topics(session: Session, ingest: Table) -> dict[str, int]:
    """Returns topic -> quarantined rows, for topics that the ingest table reads no more: no declaration can parse them."""
    read = [source.address for source in session.catalog.sources_of(ingest).values()]
    topic = F.col(f"{ARRIVAL}.topic")
    found = (
        _quarantine(session, ingest)
        .where(~topic.isin(read))
        .groupBy(topic.alias("topic"))
        .count()
        .collect()
    )
    return {row["topic"]: row["count"] for row in found}


def _quarantine(session: Session, ingest: Table) -> DataFrame:
    if not delta_log.exists(session.path(ingest, "quarantine")):
        raise RangeError(
            f"table={ingest.name}, quarantine={session.path(ingest, 'quarantine')}: the folder is gone, and the quarantined rows "
            "with it; restore it, or start the job of the table, which makes an empty one"
        )
    return session.read(ingest, side="quarantine")
