"""What tables are computed from: what grows (topics, folders, tables of others, sources of one's own), and files read whole."""

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
from lakehouse.durations import duration
from lakehouse.errors import DeclarationError

ValueFormat = Literal["json", "text", "avro", "json_schema", "protobuf", "debezium"]
FolderFormat = Literal["json", "csv", "text", "parquet"]
UnknownFields = Literal["ignore", "quarantine"]
Isolation = Literal["", "read_uncommitted", "read_committed"]
KeyFormat = Literal["", "text", "json", "int", "long", "avro", "json_schema", "protobuf"]
Framing = Literal["", "concatenated"]
HEADER = "header:"
"""Before the name of a header in `metadata`."""
EMPTY = ("",)
"""The fields of CSV that are null by default."""
OF_REGISTRY = ("avro", "json_schema", "protobuf")
"""Formats of values whose schema is in a schema registry."""
OF_ROWS = ("parquet", "delta", "delta_changes", "iceberg")
"""Formats of rows with columns of their own, which become records as JSON."""


@dataclass(frozen=True, slots=True)
class RecordSource:
    """What an ingest table reads: records, each with a partition and an offset, so that each is read once.

    Columns marked NOT NULL in `schema` are required, else: quarantine.
    """

    address: (
        str  # in `_arrival` and messages: a topic, the path of a folder or of a table, or a name
    )
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
    until: datetime | None = None  # of the history of a topic: from then on the topic has the rows
    # of topics alone
    require_key: bool = False
    key: str = ""
    key_format: KeyFormat = ""  # text, or JSON where it is an object or a string
    metadata: tuple[tuple[str, str], ...] = ()  # columns, and what of the record is in each
    isolation: Isolation = ""  # by the settings
    keys: tuple[str, ...] = ()  # of change events: the columns of the key

    @property
    def is_history(self) -> bool:
        """Whether it is read in front of a topic, to its end and once."""
        return self.until is not None

    @property
    def of_registry(self) -> bool:
        """Whether the schema of each value is in a schema registry."""
        return self.format in OF_REGISTRY

    @property
    def has_keys_of_registry(self) -> bool:
        """Whether keys are read, and by schemas of the registry."""
        return self.reads_keys and self.key_format in ("avro", "protobuf")

    @property
    def reads_keys(self) -> bool:
        """Whether something is made of a record's key."""
        return bool(self.key) or "key" in dict(self.metadata).values()

    @property
    def headers(self) -> dict[str, str]:
        """The columns that hold headers of a record, and the name of each header."""
        named = dict(self.metadata)
        return {c: what.removeprefix(HEADER) for c, what in named.items() if what[:7] == HEADER}

    @property
    def of_rows(self) -> bool:
        """Whether it holds rows of a table, which become records as JSON."""
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

    # none: the address is the path of the table; may hold secrets
    catalog: tuple[tuple[str, str], ...] = field(default=(), repr=False)


TableSource = DeltaSource | IcebergSource
FilesSource = FolderSource | TableSource
"""A source whose files are registered."""


@dataclass(frozen=True, slots=True)
class PythonSource(RecordSource):
    """A source of one's own; its records are those that a class reads."""

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
    starting: datetime | None = None  # with a history: its rows before, the topic's from then on


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
    """A topic, declared once.

        sensor_topic = kafka("sensor-readings", schema="sensor_id STRING NOT NULL, event_time TIMESTAMP, celsius DOUBLE")

    A record is quarantined when its value is empty, not UTF-8 or not of the schema, or when its event time is missing.

    :param topic: its name at the broker.
    :param schema: Spark DDL; a column that is NOT NULL must be there.
    :param format: "json", objects of the schema; "text", text as it is, the one STRING column; "avro",
        "json_schema" and "protobuf" (extra `[protobuf]`), values with the id of their schema in the schema
        registry that the settings name (`LAKEHOUSE_REGISTRY_URL`), in Confluent's wire format.
    :param framing: "concatenated" reads JSON objects that stand one after another in a message, with line breaks between them
        or without: each is a row, and `_arrival.place` is its place in the message, from 0. A bad one is quarantined by itself.
    :param require_key: quarantines records without a key.
    :param unknown_fields: "quarantine" puts away records with fields that the schema does not name:
        what a producer adds or renames is reported, where else ("ignore") it is null or not seen.
    :param max_bytes: the largest value that is parsed; a larger one is quarantined.
    :param max_future_skew: how far an event time may be ahead of the record's own timestamp.
    :param min_event_time: the earliest event time, with its time zone.
    :param idle_timeout: a partition (and a value, of a table with `watermark_by`) silent for so long, while another
        is not, no longer holds back the watermark.
    :param quiet_timeout: once all partitions have been silent for so long, event time goes on with the
        clock, so that the last windows close. What a producer held back for longer is late then; by default
        event time waits for the next record.
    :param key: for a compacted topic: the column that is the record's key, a STRING, INT or BIGINT. A record without a value
        deletes that key: a row of the key and nulls. Two columns are added: `deleted`, and `sent`, the record's own timestamp,
        the only time it has. A value may lack the column. One with another key than its record's is quarantined.
    :param key_format: how keys are written: "text"; "json", a string, a number or an object of the one field `key`; "int" and
        "long", the bytes of Java's serializers; "avro", "json_schema", "protobuf", by the registry. By default text, or JSON if
        it is one.
    :param metadata: further columns and what of the record is in each, as `{"device": "key", "trace": "header:trace-id"}`: "key",
        its text by `key_format` (STRING), "timestamp" (TIMESTAMP), or "header:NAME", the text of the last header of that name
        (STRING), null without one.
    :param isolation: "read_committed" leaves out messages of transactions that were aborted, and waits for
        those that are open: for a topic that a table is published to. By default as the settings say,
        else "read_uncommitted".
    :param history: a `folder`, `delta_table` or `iceberg_table` of the same schema with the earlier rows of the topic.
        It is read to its end once, then the topic. None by default: the topic is read from its beginning.
    :param starting: with a history, the event time of the cut, with its time zone. Rows of the history before it
        and rows of the topic from it on count. The others are quarantined, so that no row is there twice.
    :raises DeclarationError: for a schema, key or history that cannot be.
    """
    one_of("format", format, ("json", "text", *OF_REGISTRY))
    one_of("isolation", isolation, ("", "read_uncommitted", "read_committed"))
    one_of("key_format", key_format, get_args(KeyFormat))
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
    check_records(source)
    check_keys(source)
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
    """A folder that others put files into, as the input of an ingest table: each file is read once.

        reading_files = folder("/data/incoming", schema="sensor_id STRING NOT NULL, event_time TIMESTAMP NOT NULL")

    A record is a line, or a row of Parquet. Files are read by their modification time, then by their
    name, also those in folders below. A bad record is quarantined with its file and line. A file that
    was read may be renamed, moved within the folder, or removed.

    :param path: the folder; a relative one is relative to the module that declares it.
    :param schema: Spark DDL; a column that is NOT NULL must be there.
    :param format: "json", an object a line; "csv", with the columns of the schema in their order, values
        quoted by `"` if they must be, and no line breaks in them; "text", a line as it is, the one STRING
        column; "parquet". The first three may be compressed by gzip, if their names end with `.gz`.
    :param framing: "concatenated" reads JSON objects that stand one after another in a line, as `kafka` does in a message.
    :param pattern: which names of files count, as a shell has it; those that begin with `.` or `_`, or end
        with `.tmp` or `.part`, never do.
    :param header: whether each CSV file begins with a line that names the columns in their order, by default
        yes. A file whose first line does not is refused by its name, and not read until it is corrected.
    :param nulls: the fields of CSV that are null, with quotes or without, as `["", "NA"]`. By default the empty one.
    :param settle: how long size and modification time of a file stand still before it counts as whole: more
        than its writer pauses.
    :param forget: a file that was read, is gone, and was modified so long ago is forgotten. One that comes back after
        that is read again. By default none is forgotten.
    :param unknown_fields: "quarantine" puts away JSON objects and rows of Parquet with fields that the schema does not
        name.
    :param max_bytes: the longest line, or row as JSON, that is parsed; a longer one is quarantined, of a line
        as much as that.
    :param max_future_skew: how far an event time may be ahead of the modification time of its file.
    :param min_event_time: the earliest event time, with its time zone.
    :param idle_timeout: of a table with `watermark_by`: a value silent for so long, while another is not, no longer holds
        back the watermark.
    :param quiet_timeout: once no record has come for so long, event time goes on with the clock.
    :raises DeclarationError: for a schema or format that cannot be.
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
    """Files read whole, as the input of a reference table.

        campaign_files = files("campaigns.csv", schema="ad_id STRING, campaign_id STRING")

    :param path: a file or folder; a relative one is relative to the module that declares it.
    :param schema: Spark DDL.
    :param format: "csv", "delta" (a Delta table of others, at its newest version), or another that Spark reads.
    :param header: whether each CSV file begins with a line that names the columns in their order.
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
    """A path that the function which calls this was given: a relative one is relative to the module that calls that."""
    if "://" in path or path.startswith("/"):
        return path
    module_file = inspect.stack()[2].frame.f_globals.get("__file__", "")
    return str(Path(module_file).resolve().parent / path)
