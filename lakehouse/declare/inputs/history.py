"""The history of a topic: a folder or a table of others that an ingest table reads to its end before it reads the topic."""

import re
from collections.abc import Mapping

from lakehouse.declare.columns import INGESTION, without_not_null
from lakehouse.declare.inputs.kafka import KafkaSource
from lakehouse.declare.inputs.source_checks import check_event_time
from lakehouse.declare.inputs.sources import FilesSource
from lakehouse.declare.table import Table
from lakehouse.errors import DeclarationError


def check(table: Table, topics: Mapping[str, KafkaSource]) -> None:
    """Raises DeclarationError for a history that this table cannot read before its topic."""
    declared = [each for each in topics.values() if each.history or each.starting]
    for topic in declared:
        _check_parted(topic)
    if declared and len(topics) > 1:
        raise DeclarationError(
            f"table={table.name}, inputs={table.inputs}: a topic with a history is read alone; declare an ingest table for each "
            "topic, and a table that reads these, with unionByName"
        )
    if declared and table.event_time == INGESTION:
        raise DeclarationError(
            f"table={table.name}, event_time={INGESTION!r}: event time divides a history from its topic, and this is the time of "
            "arrival; name the column of event time"
        )


def _check_parted(topic: KafkaSource) -> None:
    history, starting = topic.history, topic.starting
    where = f"topic={topic.address}"
    if history is None or starting is None:
        raise DeclarationError(
            f"{where}, history={history and history.address}, starting={starting}: the instant parts the rows of the history "
            "from those of the topic; give both, or neither"
        )
    check_event_time(f"{where}, starting", starting)
    where += f", history={history.address}"
    if not isinstance(history, FilesSource):
        raise DeclarationError(
            f"{where}: a history is a folder, or a Delta or Iceberg table of others; read others by an ingest table of their own"
        )
    if history.format == "delta_changes":
        raise DeclarationError(
            f"{where}, changes=True: the topic has rows and no changes of rows; leave `changes` out, or read the changes by an "
            "ingest table of their own"
        )
    if topic.key:
        raise DeclarationError(
            f"{where}, key={topic.key!r}: files do not say that a key was deleted; read them by an ingest table of their own"
        )
    if _columns(history.schema) != _columns(topic.schema):
        raise DeclarationError(
            f"{where}: its schema is {' '.join(history.schema.split())!r}, "
            f"and the topic's is {' '.join(topic.schema.split())!r}; one function computes the rows of both; "
            "give both the same columns in the same order, with the same types"
        )
    if history.quiet_timeout:
        raise DeclarationError(
            f"{where}, quiet_timeout={history.quiet_timeout}: a history is read to its end, and then event time goes on with the "
            "topic; leave it out there, and give it to the topic"
        )


def _columns(schema: str) -> str:
    """Returns Spark DDL in one spelling, without NOT NULL, which may differ."""
    return re.sub(r"\s*([,:<>()])\s*", r"\1", without_not_null(schema)).lower()
