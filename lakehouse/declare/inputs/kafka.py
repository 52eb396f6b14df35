"""Topics of Kafka, as inputs of ingest tables."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Unpack, get_args

from lakehouse.declare.inputs.source_checks import check_keys, check_records, one_of
from lakehouse.declare.inputs.sources import (
    OF_REGISTRY,
    About,
    FilesSource,
    Framing,
    Isolation,
    KeyFormat,
    RecordOptions,
    RecordSource,
    ValueFormat,
    record_options,
)
from lakehouse.declare.remarks import check_all

_VALUES = {
    "json": "JSON objects",
    "text": "text",
    "avro": "Avro, of a schema registry",
    "protobuf": "Protobuf, of a schema registry",
    "json_schema": "JSON objects of a schema registry's JSON Schema",
    "debezium": "changes of a database's table, as Debezium sends them",
}


@dataclass(frozen=True, slots=True)
class KafkaSource(RecordSource):
    """A topic of JSON objects, of text, or of values whose schemas are in a registry."""

    history: FilesSource | None = None

    job_kind = "kafka"

    def read_by(self, name: str) -> Iterator[tuple[str, RecordSource]]:
        yield name, self
        if self.history:
            yield f"{name} (history)", self.history

    @property
    def label(self) -> str:
        return f"topic {self.address}" + (
            f", behind {self.history.address}" if self.history else ""
        )

    @property
    def about(self) -> About:
        shown = f"The topic `{self.address}`: {_VALUES[self.format]}."
        where = {"topic": self.address}
        if self.history and self.starting:
            shown += f" Before it `{self.history.address}` is read, its rows before {self.starting.isoformat()}."
            where["history"] = self.history.address
        return About(shown, "kafka", where)

    def dataset(self, broker: Callable[[], str]) -> tuple[str, str]:
        return f"kafka://{broker()}", self.address


def kafka(
    topic: str,
    *,
    schema: str,
    format: ValueFormat = "json",
    framing: Framing = "",
    require_key: bool = False,
    key: str = "",
    key_format: KeyFormat = "",
    metadata: Mapping[str, str] | None = None,
    isolation: Isolation = "",
    history: FilesSource | None = None,
    starting: datetime | None = None,
    **records: Unpack[RecordOptions],
) -> KafkaSource:
    """Declares a topic of Kafka as the input of an ingest table.

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
    :param records: see `RecordOptions`.
    :raises DeclarationError: for a schema, key or history that cannot be.
    """
    source = KafkaSource(
        topic,
        schema,
        format,
        **record_options("kafka", records),
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
