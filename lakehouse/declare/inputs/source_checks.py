"""The rules of a source's options, whatever it reads, and of the history that an ingest table reads before a topic."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from lakehouse.declare import columns
from lakehouse.declare.inputs.sources import FilesSource
from lakehouse.errors import DeclarationError
from lakehouse.ranges import BEGINNING, text

if TYPE_CHECKING:
    from lakehouse.declare.inputs.files import FileSource
    from lakehouse.declare.inputs.kafka import KafkaSource
    from lakehouse.declare.inputs.sources import RecordSource
    from lakehouse.declare.table import Table

_OF_KEY = re.compile(r"(STRING|INT|INTEGER|BIGINT|LONG)(\s+NOT\s+NULL)?\s*", re.IGNORECASE)
_METADATA = re.compile(r"key|timestamp|header:.+", re.DOTALL)
_TEXT = re.compile(r"\s*\w+\s+STRING(\s+NOT\s+NULL)?\s*", re.IGNORECASE)


def check_records(source: "RecordSource") -> None:
    """Raises DeclarationError for options that no kind of source can have."""
    one_of("unknown_fields", source.unknown_fields, ("ignore", "quarantine"))
    check_names(source.schema)
    if source.format == "text" and not _TEXT.fullmatch(source.schema):
        raise DeclarationError(
            f"schema={source.schema!r}, format='text': text is one column, a STRING; write for example 'line STRING NOT NULL'"
        )
    if source.unknown_fields == "quarantine" and source.format in ("text", "csv"):
        raise DeclarationError(
            f"unknown_fields='quarantine', format={source.format!r}: its values have no names; leave unknown_fields out"
        )
    check_nulls(source)
    one_of("framing", source.framing, ("", "concatenated"))
    if source.framing and source.format != "json":
        raise DeclarationError(
            f"framing={source.framing!r}, format={source.format!r}: only JSON objects stand one after another; leave framing out"
        )
    if source.framing and source.key:
        raise DeclarationError(
            f"framing={source.framing!r}, key={source.key!r}: a key is of one row, and a message may have several; leave one out"
        )
    check_event_time("min_event_time", source.min_event_time)


def null_texts(nulls: Sequence[str]) -> tuple[str, ...]:
    """Returns the texts as a tuple. Raises DeclarationError for a single text."""
    if isinstance(nulls, str):
        raise DeclarationError(f"nulls={nulls!r}: it is a list of texts; write [{nulls!r}]")
    return tuple(nulls)


def check_nulls(source: "RecordSource | FileSource") -> None:
    if source.nulls != ("",) and source.format != "csv":
        raise DeclarationError(
            f"nulls={list(source.nulls)}, format={source.format!r}: only fields of CSV have texts for null; leave it out"
        )


def check_event_time(name: str, instant: object) -> None:
    if not isinstance(instant, datetime) or instant.tzinfo is None:
        rule = "a datetime with its time zone; write for example datetime(2000, 1, 1, tzinfo=UTC)"
        raise DeclarationError(f"{name}={instant!r}: {rule}")
    if instant <= BEGINNING:
        raise DeclarationError(
            f"{name}={text(instant)}: event times are later than {text(BEGINNING)}; keep earlier times in another column"
        )


def check_keys(source: "KafkaSource") -> None:
    key = source.key
    given = dict(source.metadata)
    declared = dict(columns.of_ddl(source.schema))
    if key and (source.format == "text" or not _OF_KEY.fullmatch(declared.get(key, ""))):
        raise DeclarationError(
            f"key={key!r}, schema={source.schema!r}: a key is text or a whole number; name a STRING, INT or BIGINT column"
        )
    names = {name.lower() for name in declared} | ({"deleted", "sent"} if key else set())
    for name, what in given.items():
        if not _METADATA.fullmatch(what):
            raise DeclarationError(f"metadata, {name}={what!r}: one of key, timestamp, header:NAME")
        if name.lower() in names:
            raise DeclarationError(
                f"metadata={given}, column={name}: the source has a column of that name; give it another name"
            )
    if source.key_format and not source.reads_keys:
        raise DeclarationError(
            f"key_format={source.key_format!r}: nothing reads the keys; add key= or metadata={{'NAME': 'key'}}, or leave it out"
        )
    if given and source.history:
        raise DeclarationError(
            f"metadata={given}, history={source.history.address}: files have none of it; have the values hold it"
        )


def check_names(schema: str) -> None:
    if unusable := columns.reserved(re.findall(r"\w+", schema)):
        raise DeclarationError(
            f"schema, column={unusable[0]}: this prefix is for columns that the library adds; rename the field where it is sent"
        )
    for name, rest in columns.of_ddl(schema):
        if re.search(r"\bDEFAULT\b", re.sub("<.*>", "", rest), re.IGNORECASE):
            raise DeclarationError(
                f"schema, column={name}, DEFAULT: earlier rows lack it; use coalesce({name}, ...) in the function instead"
            )


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise DeclarationError(f"{name}={value!r}: one of {', '.join(allowed)}")


def check_history(table: "Table", topics: Mapping[str, "KafkaSource"]) -> None:
    """Raises DeclarationError for a history that this table cannot read before its topic."""
    declared = [topic for topic in topics.values() if topic.history or topic.starting]
    for topic in declared:
        _check_parted(topic)
    if declared and len(topics) > 1:
        raise DeclarationError(
            f"table={table.name}, inputs={table.inputs}: a topic with a history is read alone; declare an ingest table for each "
            "topic, and a table that reads these, with unionByName"
        )
    if declared and table.event_time == columns.INGESTION:
        raise DeclarationError(
            f"table={table.name}, event_time={columns.INGESTION!r}: event time divides a history from its topic, and this is the "
            "time of arrival; name the column of event time"
        )


def _check_parted(topic: "KafkaSource") -> None:
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
            f"{where}, changes=True: the topic has rows and no changes of rows; leave it out, or read them by another table"
        )
    if topic.key:
        raise DeclarationError(
            f"{where}, key={topic.key!r}: files do not say that a key was deleted; read them by an ingest table of their own"
        )
    if _spelled(history.schema) != _spelled(topic.schema):
        raise DeclarationError(
            f"{where}: its schema is {' '.join(history.schema.split())!r}, the topic's {' '.join(topic.schema.split())!r}; give "
            "both the same columns in the same order, with the same types"
        )
    if history.quiet_timeout:
        raise DeclarationError(
            f"{where}, quiet_timeout={history.quiet_timeout}: a history is read to its end at once; give it to the topic alone"
        )


def _spelled(schema: str) -> str:
    """Returns Spark DDL in one spelling, without NOT NULL, which may differ."""
    return re.sub(r"\s*([,:<>()])\s*", r"\1", columns.without_not_null(schema)).lower()
