"""The contract of sources and the options that all of them have; each kind of source has a module of its own."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

from lakehouse.declare.columns import without_not_null
from lakehouse.durations import duration

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
RAW = "key BINARY, value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP"
"""The columns of records."""


@dataclass(frozen=True, slots=True)
class About:
    """A source as Dagster shows it."""

    description: str
    kind: str
    metadata: Mapping[str, str]


class RecordOptions(TypedDict, total=False):
    """Options of every source of an ingest table.

    unknown_fields: "quarantine" quarantines a record with fields that the schema does not name: what a producer adds or
        renames is reported. By default such a field is left out, or null ("ignore").
    max_bytes: the largest value (of a file, line or row as JSON) that is parsed, 1 MiB by default; a larger one is quarantined.
    max_future_skew: how far an event time may be ahead of the record's own timestamp (of a file, its modification; of a
        table's row, its commit), 5 minutes by default.
    min_event_time: the earliest event time, with its time zone; 2000-01-01 in UTC by default.
    idle_timeout: a partition (and a value, of a table with `watermark_by`) that is silent this long, 30 seconds by default,
        while another is not, no longer holds back the watermark.
    quiet_timeout: once all partitions have been silent this long, event time goes on with the clock, so that the last
        windows close. What a producer held back for longer is late then. By default event time waits for the next record.
    """

    unknown_fields: UnknownFields
    max_bytes: int
    max_future_skew: str | timedelta
    min_event_time: datetime
    idle_timeout: str | timedelta
    quiet_timeout: str | timedelta


_DURATIONS = ("max_future_skew", "idle_timeout", "quiet_timeout")


def record_options(source: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options as a `RecordSource` has them. Raises TypeError for one that `source` does not have."""
    names = RecordOptions.__annotations__
    if unknown := sorted(given.keys() - names.keys()):
        raise TypeError(
            f"{source}() has no option {unknown[0]!r}; beside its own it has {', '.join(names)}"
        )
    return {n: duration(v, n) if n in _DURATIONS else v for n, v in given.items()}


class Source(ABC):
    """A source that a table is computed from. Each kind of source answers for itself."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: str
    schema: str
    job_kind: ClassVar[str] = ""
    """The kind that a streaming job which reads it has in Dagster."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Its kind and its address, in lists of tables."""

    @property
    @abstractmethod
    def about(self) -> About:
        """Its description for Dagster."""

    @property
    @abstractmethod
    def raw_columns(self) -> str:
        """The columns of its rows before they are decoded, as Spark DDL."""

    @abstractmethod
    def dataset(self, broker: Callable[[], str]) -> tuple[str, str]:
        """Its namespace and name in OpenLineage; `broker` gives the address of the broker."""

    def read_by(self, name: str) -> "Iterator[tuple[str, RecordSource]]":
        """The sources that an ingest table reads for this input, by name: none of a source that is read whole."""
        yield from ()


@dataclass(frozen=True, slots=True)
class RecordSource(Source):
    """A source of an ingest table: records, each with a partition and an offset, so that each is read once.

    A record without a NOT NULL column of `schema` is quarantined.
    """

    # in `_arrival` and messages: a topic, the path of a folder or of a table, or a name
    address: str
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
    starting: datetime | None = None  # with a history: its rows before, the topic's from then on
    require_key: bool = False
    key: str = ""
    key_format: KeyFormat = ""  # text, or JSON where it is an object or a string
    metadata: tuple[tuple[str, str], ...] = ()  # columns, and what of the record is in each
    isolation: Isolation = ""  # by the settings
    keys: tuple[str, ...] = ()  # of change events: the columns of the key

    what: ClassVar[str] = ""
    """The name of its kind, before its address."""
    while_resting: ClassVar[str] = ""
    """The fate of records that come while a job rests; empty where the broker has to say it."""
    place: ClassVar[str] = "_arrival['partition'] AS partition"
    """The expression that says, beside the offset, where a quarantined record stands."""
    raw_columns = RAW

    @property
    def is_history(self) -> bool:
        """True if it is read once, to its end, before a topic."""
        return self.until is not None

    @property
    def of_registry(self) -> bool:
        """True if the schemas of values are in a schema registry."""
        return self.format in OF_REGISTRY

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

    @property
    def label(self) -> str:
        return f"{self.what} {self.address}"

    @property
    def read_as(self) -> str:
        """The way its records become rows, without NOT NULL, which is an expectation."""
        nulls = f", null as {', '.join(map(repr, self.nulls))}" if self.nulls != EMPTY else ""
        return f"{self.format}{self.manner}{nulls}: {without_not_null(self.schema)}"

    @property
    def manner(self) -> str:
        """The options besides format and columns that decide how a record is read."""
        key = ", ".join(self.keys) or self.key
        how = f", key {key}" if key else ""
        if self.key_format:
            how += f" ({self.key_format})"
        return how + "".join(f", {name} from {what}" for name, what in self.metadata)

    @property
    def reader_note(self) -> str:
        """The user's class that reads it, with its options; empty if there is none."""
        return ""

    @property
    def local_path(self) -> str:
        """The folder on a disk that must be there; empty if there is none."""
        return ""

    def read_by(self, name: str) -> "Iterator[tuple[str, RecordSource]]":
        yield name, self

    def dataset(self, broker: Callable[[], str]) -> tuple[str, str]:
        return "file", self.address


@dataclass(frozen=True, slots=True)
class FilesSource(RecordSource):
    """A source whose files are registered: a folder, or a table of others."""

    place: ClassVar[str] = "key"  # it names file and line


def absolute(path: str) -> str:
    """Returns an absolute path. A relative one is relative to the module that calls the caller of this function."""
    if "://" in path or path.startswith("/"):
        return path
    module_file = inspect.stack()[2].frame.f_globals.get("__file__", "")
    return str(Path(module_file).resolve().parent / path)
