"""The sources of tables: topics, folders, tables of others and sources of your own, which grow, and files read whole."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

from lakehouse.declare.inputs.readers import SourceReader
from lakehouse.declare.inputs.source_checks import (
    check_keys,
    check_names,
    check_nulls,
    check_records,
    null_texts,
    one_of,
)
from lakehouse.declare.remarks import check_all
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError

ValueFormat = Literal["json", "text", "avro", "json_schema", "protobuf", "debezium"]
FolderFormat = Literal["json", "csv", "text", "parquet"]
UnknownFields = Literal["ignore", "quarantine"]
Isolation = Literal["", "read_uncommitted", "read_committed"]
KeyFormat = Literal["", "text", "json", "int", "long", "avro", "json_schema", "protobuf"]
Framing = Literal["", "concatenated"]
HEADER = "header:"
"""The prefix of the name of a header in `metadata`."""
EMPTY = ("",)
"""The fields of CSV that are null by default."""
OF_REGISTRY = ("avro", "json_schema", "protobuf")
"""Formats of values whose schema is in a schema registry."""
OF_ROWS = ("parquet", "delta", "delta_changes", "iceberg")
"""Formats of rows with columns of their own, which become records as JSON."""


@dataclass(frozen=True, slots=True)
class RecordSource:
    """A source of an ingest table: records, each with a partition and an offset, so that each is read once.

    A record without a NOT NULL column of `schema` is quarantined.
    """

    topic: str  # its name in `_arrival`: a topic, the path of a folder or of a table, or a name
    schema: str
    format: ValueFormat | FolderFormat | Literal["delta", "delta_changes", "iceberg"] = "json"
    unknown_fields: UnknownFields = "ignore"
    max_bytes: int = 1 << 20
    max_future_skew: timedelta = timedelta(minutes=5)
    min_event_time: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    idle_timeout: timedelta = timedelta(seconds=30)
    quiet_timeout: timedelta = timedelta(0)  # zero: event time stands still while no record comes
    name: str = ""
    framing: Framing = ""  # a value is one object, or objects one after another
    nulls: tuple[str, ...] = EMPTY  # of CSV: the fields that are null
    until: datetime | None = None  # of a topic's history: from then on the topic has the rows
    # of topics alone
    require_key: bool = False
    key: str = ""
    key_format: KeyFormat = ""  # text, or JSON where it is an object or a string
    metadata: tuple[tuple[str, str], ...] = ()  # columns, and what of the record is in each
    isolation: Isolation = ""  # by the settings
    keys: tuple[str, ...] = ()  # of change events: the columns of the key

    @property
    def is_history(self) -> bool:
        """True if it is read once, to its end, before a topic."""
        return self.until is not None

    @property
    def of_registry(self) -> bool:
        """True if the schemas of values are in a schema registry."""
        return self.format in OF_REGISTRY

    @property
    def has_keys_of_registry(self) -> bool:
        """True if keys are read by schemas of the registry."""
        return self.reads_keys and self.key_format in ("avro", "protobuf")

    @property
    def reads_keys(self) -> bool:
        """True if a column is made of the record's key."""
        return bool(self.key) or "key" in dict(self.metadata).values()

    @property
    def headers(self) -> dict[str, str]:
        """The columns that hold headers of a record, each with the name of the header."""
        named = dict(self.metadata)
        return {c: what.removeprefix(HEADER) for c, what in named.items() if what[:7] == HEADER}

    @property
    def of_rows(self) -> bool:
        """True if it holds rows of a table, which become records as JSON."""
        return self.format in OF_ROWS


@dataclass(frozen=True, slots=True)
class FolderSource(RecordSource):
    """A folder that others put files into; each line, or row of Parquet, is a record."""

    pattern: str = "*"
    header: bool = False  # each file begins with a line that names the columns
    settle: timedelta = timedelta(seconds=2)
    forget: timedelta = timedelta(0)  # never


@dataclass(frozen=True, slots=True)
class DeltaSource(RecordSource):
    """A Delta table of others; each row that is appended to it is a record, or each change of a row."""

    @property
    def of_changes(self) -> bool:
        return self.format == "delta_changes"


@dataclass(frozen=True, slots=True)
class IcebergSource(RecordSource):
    """An Iceberg table of others; each row that is appended to it is a record."""

    # none: the topic is the path of the table; may hold secrets
    catalog: tuple[tuple[str, str], ...] = field(default=(), repr=False)


TableSource = DeltaSource | IcebergSource
FilesSource = FolderSource | TableSource
"""A source whose files are registered."""


@dataclass(frozen=True, slots=True)
class PythonSource(RecordSource):
    """A source of your own: records that a Python class reads."""

    reader: type[SourceReader] = field(kw_only=True)
    options: tuple[tuple[str, str | int | float | bool | None], ...] = ()
    poll_interval: timedelta = timedelta(seconds=1)

    @property
    def class_name(self) -> str:
        return f"{self.reader.__module__}.{self.reader.__qualname__}"


@dataclass(frozen=True, slots=True)
class KafkaSource(RecordSource):
    """A topic of JSON objects, of text, or of values whose schemas are in a registry."""

    history: FilesSource | None = None
    starting: datetime | None = None  # with a history: its rows before, the topic's from here on


def kafka(
    topic: str,
    *,
    schema: str,
    format: ValueFormat = "json",
    framing: Framing = "",
    require_key: bool = False,
    unknown_fields: UnknownFields = "ignore",
    max_bytes: int = 1 << 20,
    max_future_skew: str | timedelta = "5 minutes",
    min_event_time: datetime = datetime(2000, 1, 1, tzinfo=UTC),
    idle_timeout: str | timedelta = "30 seconds",
    quiet_timeout: str | timedelta = "0 seconds",
    key: str = "",
    key_format: KeyFormat = "",
    metadata: Mapping[str, str] | None = None,
    isolation: Isolation = "",
    history: FilesSource | None = None,
    starting: datetime | None = None,
) -> KafkaSource:
    """Declares a topic.

        sensor_topic = kafka("sensor-readings", schema="sensor_id STRING NOT NULL, event_time TIMESTAMP, celsius DOUBLE")

    A record is quarantined when its value is empty, not UTF-8 or not of the schema, or when its event time is missing.

    :param topic: its name at the broker.
    :param schema: Spark DDL; a NOT NULL column is required.
    :param format: "json", objects of the schema; "text", text as it is, the one STRING column; "avro",
        "json_schema" and "protobuf" (extra `[protobuf]`), values with the id of their schema in the schema
        registry that the settings name (`LAKEHOUSE_REGISTRY_URL`), in Confluent's wire format.
    :param framing: "concatenated" reads JSON objects that stand one after another in a message, with line breaks between them
        or without: each is a row, and `_arrival.place` is its place in the message, from 0. A bad one is quarantined by itself.
    :param require_key: quarantines records without a key.
    :param unknown_fields: "quarantine" quarantines records with fields that the schema does not name, so that a field
        which a producer adds or renames is reported. "ignore" leaves such fields out.
    :param max_bytes: the largest value that is parsed; a larger one is quarantined.
    :param max_future_skew: how far an event time may be ahead of the record's own timestamp.
    :param min_event_time: the earliest event time, with its time zone.
    :param idle_timeout: a partition (or a value, with `watermark_by`) that is silent this long, while another is not,
        no longer holds back the watermark.
    :param quiet_timeout: once all partitions have been silent this long, event time goes on with the clock, so that
        the last windows close. Records that a producer held back for longer are late then. By default event time
        waits for the next record.
    :param key: for a compacted topic: the column that is the record's key, a STRING, INT or BIGINT. A record without a value
        deletes that key: a row of the key and nulls. Two columns are added: `deleted`, and `sent`, the record's own timestamp,
        the only time it has. A value may lack the key's column. One whose key differs from its record's is quarantined.
    :param key_format: how keys are written: "text"; "json", a string, a number or an object of the one field `key`; "int" and
        "long", the bytes of Java's serializers; "avro", "json_schema", "protobuf", by the registry. By default text, or JSON if
        it is one.
    :param metadata: further columns, each filled from a part of the record, as `{"device": "key", "trace": "header:trace-id"}`:
        "key", its text by `key_format` (STRING), "timestamp" (TIMESTAMP), or "header:NAME", the text of the last header of
        that name (STRING), null without one.
    :param isolation: "read_committed" leaves out messages of aborted transactions and waits for open ones: for a
        topic that a table is published to. By default as the settings say, else "read_uncommitted".
    :param history: a `folder`, `delta_table` or `iceberg_table` of the same schema with the earlier rows of the topic.
        It is read to its end once, then the topic. None by default: the topic is read from its beginning.
    :param starting: with a history, the event time of the cut, with its time zone. Rows of the history before it
        and rows of the topic from it on count. The others are quarantined, so that no row counts twice.
    :raises DeclarationError: for an impossible schema, key or history.
    """
    source = KafkaSource(
        topic,
        schema,
        format,
        unknown_fields,
        max_bytes,
        duration(max_future_skew, "max_future_skew"),
        min_event_time,
        duration(idle_timeout, "idle_timeout"),
        duration(quiet_timeout, "quiet_timeout"),
        framing=framing,
        require_key=require_key,
        key=key,
        key_format=key_format,
        metadata=tuple((metadata or {}).items()),
        isolation=isolation,
        history=history and replace(history, until=starting),
        starting=starting,
    )
    check_all(
        lambda: one_of("format", format, ("json", "text", *OF_REGISTRY)),
        lambda: one_of("isolation", isolation, ("", "read_uncommitted", "read_committed")),
        lambda: one_of("key_format", key_format, get_args(KeyFormat)),
        lambda: check_records(source),
        lambda: check_keys(source),
    )
    return source


def folder(
    path: str,
    *,
    schema: str,
    format: FolderFormat = "json",
    framing: Framing = "",
    pattern: str = "*",
    header: bool | None = None,
    nulls: Sequence[str] = EMPTY,
    settle: str | timedelta = "2 seconds",
    forget: str | timedelta = "0 seconds",
    unknown_fields: UnknownFields = "ignore",
    max_bytes: int = 1 << 20,
    max_future_skew: str | timedelta = "5 minutes",
    min_event_time: datetime = datetime(2000, 1, 1, tzinfo=UTC),
    idle_timeout: str | timedelta = "30 seconds",
    quiet_timeout: str | timedelta = "0 seconds",
) -> FolderSource:
    """Declares a folder that others put files into as the input of an ingest table: each file is read once.

        reading_files = folder("/data/incoming", schema="sensor_id STRING NOT NULL, event_time TIMESTAMP NOT NULL")

    A record is a line, or a row of Parquet. Files, also those in folders below, are read by modification time,
    then by name. A bad record is quarantined with its file and line. A file that was read may be renamed, moved
    within the folder, or removed.

    :param path: the folder; a relative one is relative to the module that declares it.
    :param schema: Spark DDL; a NOT NULL column is required.
    :param format: "json", an object a line; "csv", with the columns of the schema in their order, values
        quoted by `"` if they must be, and no line breaks in them; "text", a line as it is, the one STRING
        column; "parquet". The first three may be compressed by gzip, if their names end with `.gz`.
    :param framing: "concatenated" reads JSON objects that stand one after another in a line, as `kafka` does in a message.
    :param pattern: the file names that count, as a shell pattern; those that begin with `.` or `_`, or end with
        `.tmp` or `.part`, never do.
    :param header: True, the default, if each CSV file begins with a line that names the columns in their order. A file
        with another first line is refused by its name, and not read until it is corrected.
    :param nulls: the fields of CSV that are null, with quotes or without, as `["", "NA"]`. By default the empty one.
    :param settle: how long size and modification time of a file must stand still before it counts as whole: longer
        than its writer pauses.
    :param forget: a file that was read, is gone, and was modified this long ago is forgotten. One that comes back after
        that is read again. By default none is forgotten.
    :param unknown_fields: "quarantine" quarantines JSON objects and rows of Parquet with fields that the schema does not
        name.
    :param max_bytes: the longest line, or row as JSON, that is parsed; a longer one is quarantined, a line cut to that
        length.
    :param max_future_skew: how far an event time may be ahead of the modification time of its file.
    :param min_event_time: the earliest event time, with its time zone.
    :param idle_timeout: with `watermark_by`, a value that is silent this long, while another is not, no longer holds
        back the watermark.
    :param quiet_timeout: once no record has come for this long, event time goes on with the clock.
    :raises DeclarationError: for an impossible schema or format.
    """
    one_of("format", format, ("json", "csv", "text", "parquet"))
    if header is not None and format != "csv":
        raise DeclarationError(
            f"header={header}, format={format!r}: only CSV files have a header line; leave it out"
        )
    source = FolderSource(
        absolute(path),
        schema,
        format,
        unknown_fields,
        max_bytes,
        duration(max_future_skew, "max_future_skew"),
        min_event_time,
        idle_timeout=duration(idle_timeout, "idle_timeout"),
        quiet_timeout=duration(quiet_timeout, "quiet_timeout"),
        framing=framing,
        nulls=null_texts(nulls),
        pattern=pattern,
        header=format == "csv" and header is not False,
        settle=duration(settle, "settle"),
        forget=duration(forget, "forget"),
    )
    check_records(source)
    return source


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files that change seldom: read whole, as a reference table."""

    path: str
    schema: str
    format: str = "csv"
    name: str = ""
    header: bool = True
    nulls: tuple[str, ...] = EMPTY


def files(
    path: str,
    *,
    schema: str,
    format: str = "csv",
    header: bool = True,
    nulls: Sequence[str] = EMPTY,
) -> FileSource:
    """Declares files that are read whole, as the input of a reference table.

        campaign_files = files("campaigns.csv", schema="ad_id STRING, campaign_id STRING")

    :param path: a file or folder; a relative one is relative to the module that declares it.
    :param schema: Spark DDL.
    :param format: "csv", "delta" (a Delta table of others, at its newest version), or another that Spark reads.
    :param header: True if each CSV file begins with a line that names the columns in their order.
    :param nulls: the fields of CSV that are null, with quotes or without, as `["", "NA"]`. By default the empty one.
    :raises DeclarationError: for a column name of the library's own.
    """
    if not header and format != "csv":
        raise DeclarationError(
            f"header=False, format={format!r}: only CSV files have a header line; leave it out"
        )
    check_names(schema)
    source = FileSource(absolute(path), schema, format, header=header, nulls=null_texts(nulls))
    check_nulls(source)
    return source


Source = KafkaSource | FilesSource | PythonSource | FileSource


def absolute(path: str) -> str:
    """Returns an absolute path. A relative one is relative to the module that calls the caller of this function."""
    if "://" in path or path.startswith("/"):
        return path
    module_file = inspect.stack()[2].frame.f_globals.get("__file__", "")
    return str(Path(module_file).resolve().parent / path)
