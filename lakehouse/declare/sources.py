"""What tables are computed from: topics of Kafka, and files."""

import inspect
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from lakehouse.declare import columns
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError

ValueFormat = Literal["json", "text", "avro", "json_schema"]
UnknownFields = Literal["ignore", "quarantine"]
Isolation = Literal["", "read_uncommitted", "read_committed"]
OF_REGISTRY = ("avro", "json_schema")
"""Formats of values whose schema is in a schema registry."""
_TEXT = re.compile(r"\s*\w+\s+STRING(\s+NOT\s+NULL)?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """A topic of JSON objects, of text, or of values whose schemas are in a registry.

    Columns marked NOT NULL in `schema` are required, else: quarantine.
    """

    topic: str
    schema: str
    format: ValueFormat = "json"
    require_key: bool = False
    unknown_fields: UnknownFields = "ignore"
    max_bytes: int = 1 << 20
    max_future_skew: timedelta = timedelta(minutes=5)
    min_event_time: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    idle_timeout: timedelta = timedelta(seconds=30)
    quiet_timeout: timedelta = timedelta(0)  # zero: event time stands still while no record comes
    key: str = ""
    isolation: Isolation = ""  # by the settings
    name: str = ""

    @property
    def of_registry(self) -> bool:
        """Whether the schema of each value is in a schema registry."""
        return self.format in OF_REGISTRY


def kafka(
    topic: str,
    *,
    schema: str,
    format: ValueFormat = "json",
    require_key: bool = False,
    unknown_fields: UnknownFields = "ignore",
    max_bytes: int = 1 << 20,
    max_future_skew: str | timedelta = "5 minutes",
    min_event_time: datetime = datetime(2000, 1, 1, tzinfo=UTC),
    idle_timeout: str | timedelta = "30 seconds",
    quiet_timeout: str | timedelta = "0 seconds",
    key: str = "",
    isolation: Isolation = "",
) -> KafkaSource:
    """A topic, declared once.

        sensor_topic = kafka("sensor-readings", schema="sensor_id STRING NOT NULL, event_time TIMESTAMP, celsius DOUBLE")

    A record is quarantined when its value is empty, not UTF-8 or not of the schema, or when its event
    time is missing.

    :param topic: its name at the broker.
    :param schema: Spark DDL; a column that is NOT NULL must be there.
    :param format: "json", objects of the schema; "text", text as it is, the one STRING column; "avro" and
        "json_schema", values with the id of their schema in the schema registry that the settings name
        (`LAKEHOUSE_REGISTRY_URL`), in Confluent's wire format.
    :param require_key: quarantines records without a key.
    :param unknown_fields: "quarantine" puts away records with fields that the schema does not name:
        what a producer adds or renames is reported, where else ("ignore") it is null or not seen.
    :param max_bytes: the largest value that is parsed; a larger one is quarantined.
    :param max_future_skew: how far an event time may be ahead of the record's own timestamp.
    :param min_event_time: the earliest event time, with its time zone.
    :param idle_timeout: a partition silent for so long, while another is not, no longer holds back the
        watermark.
    :param quiet_timeout: once all partitions have been silent for so long, event time goes on with the
        clock, so that the last windows close. What a producer held back for longer is late then; by default
        event time waits for the next record.
    :param key: for a compacted topic: the STRING column that is the record's key. A record without a
        value deletes that key: a row of the key and nulls. Two columns are added: `deleted`, and
        `sent`, the record's own timestamp, which is the only time that a deletion has.
    :param isolation: "read_committed" leaves out messages of transactions that were aborted, and waits for
        those that are open: for a topic that a table is published to. By default as the settings say,
        else "read_uncommitted".
    :raises DeclarationError: for a schema or key that cannot be.
    """
    one_of("format", format, ("json", "text", *OF_REGISTRY))
    one_of("unknown_fields", unknown_fields, ("ignore", "quarantine"))
    one_of("isolation", isolation, ("", "read_uncommitted", "read_committed"))
    _check_names(schema)
    if format == "text" and not _TEXT.fullmatch(schema):
        raise DeclarationError(
            f"schema={schema!r}, format='text': text is one column, a STRING; write for example 'line STRING NOT NULL'"
        )
    if unknown_fields == "quarantine" and format == "text":
        raise DeclarationError(
            "unknown_fields='quarantine', format='text': text has no fields; leave unknown_fields out"
        )
    if key and (
        format == "text"
        or not re.search(rf"(^|,)\s*{re.escape(key)}\s+STRING\b", schema, re.IGNORECASE)
    ):
        raise DeclarationError(
            f"key={key!r}, schema={schema!r}: the key is text; name a STRING column of the schema; format='text' has no other"
        )
    if min_event_time.tzinfo is None:
        raise DeclarationError(
            f"min_event_time={min_event_time}: an instant needs its time zone; add tzinfo=UTC"
        )
    return KafkaSource(
        topic,
        schema,
        format,
        require_key,
        unknown_fields,
        max_bytes,
        duration(max_future_skew, "max_future_skew"),
        min_event_time,
        duration(idle_timeout, "idle_timeout"),
        duration(quiet_timeout, "quiet_timeout"),
        key,
        isolation,
    )


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files that change seldom: read whole, as a reference table."""

    path: str
    schema: str
    format: str = "csv"
    name: str = ""
    header: bool = True


def files(path: str, *, schema: str, format: str = "csv", header: bool = True) -> FileSource:
    """Files read whole, as the input of a reference table.

        campaign_files = files("campaigns.csv", schema="ad_id STRING, campaign_id STRING")

    :param path: a file or folder; a relative one is relative to the module that declares it.
    :param schema: Spark DDL.
    :param format: "csv", "delta" (a Delta table of others, at its newest version), or another that Spark reads.
    :param header: whether each CSV file begins with a line that names the columns in their order.
    :raises DeclarationError: for a column name of the library's own.
    """
    if not header and format != "csv":
        raise DeclarationError(
            f"header=False, format={format!r}: only CSV files have a header line; leave it out"
        )
    _check_names(schema)
    module_file = inspect.stack()[1].frame.f_globals.get("__file__", "")
    absolute = (
        path
        if "://" in path or path.startswith("/")
        else str(Path(module_file).resolve().parent / path)
    )
    return FileSource(absolute, schema, format, header=header)


Source = KafkaSource | FileSource


def _check_names(schema: str) -> None:
    if unusable := columns.reserved(re.findall(r"\w+", schema)):
        raise DeclarationError(
            f"schema, column={unusable[0]}: names that begin so are the library's, for columns that it adds while it computes; "
            "rename the field where it is sent or written"
        )


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise DeclarationError(f"{name}={value!r}: one of {', '.join(allowed)}")
