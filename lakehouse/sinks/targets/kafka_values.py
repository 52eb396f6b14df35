"""The values of a topic's messages: rows as JSON, or by a schema that is kept in the registry."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal

from lakehouse.declare.targets import Row
from lakehouse.errors import RegistryAway, SinkAway
from lakehouse.settings import Settings
from lakehouse.sinks.formats import avro, protobuf
from lakehouse.sinks.formats.encoded import Changes
from lakehouse.storage.position.schemas import Schema, number_of

if TYPE_CHECKING:
    import pyarrow as pa

    from lakehouse.runtime.schema_registry import Registry

Format = Literal["json", "avro", "protobuf"]
TYPES = {"avro": "AVRO", "protobuf": "PROTOBUF"}  # of schemas at the registry, by format


class Values:
    """Writes and reads the values of one topic."""

    def __init__(self, settings: Settings, topic: str, format: Format, table: str) -> None:
        self._settings, self._topic, self._format, self._table = settings, topic, format, table
        self._encoded: Callable[[Row], bytes] | None = None  # of a format with schemas
        self._schemas: dict[int | None, Schema | None] = {}  # of the registry, by id

    def fit(self, schema: "pa.Schema") -> None:
        """Registers the schema of rows with these columns, for a format that has one."""
        kind, subject = TYPES[self._format], f"{self._topic}-value"
        with self._registry() as registry:
            if kind == "AVRO":
                written = avro.schema_of(self._table, schema)
                number = registry.register(subject, json.dumps(written), kind)
                self._encoded = avro.encoder(written, number)
            else:
                text = protobuf.schema_of(self._table, schema, registry.newest(subject))
                number = registry.register(subject, text, kind)
                self._encoded = protobuf.encoder(text, number)

    def of(self, changes: Changes) -> Sequence[str | bytes | None]:
        """Returns the values of the messages; None for a deletion."""
        if write := self._encoded:
            return [None if change.kind == "delete" else write(change.row) for change in changes]
        values = zip(changes.kinds, changes.values(), strict=True)
        return [None if kind == "delete" else value for kind, value in values]

    def text(self, value: bytes) -> str:
        """Returns a value as `encoding` writes its row, or as text if it is none."""
        if self._format != "json":
            number = number_of(value)
            if number not in self._schemas:
                with self._registry() as registry:
                    self._schemas[number] = registry.schema(number) if number is not None else None
            schema = self._schemas[number]
            if schema and schema.type == TYPES[self._format]:
                with suppress(ValueError):
                    if schema.type == "AVRO":
                        return avro.decoded(value, schema.text)
                    return protobuf.decoded(value, schema)
        return value.decode(errors="replace")

    @contextmanager
    def _registry(self) -> "Iterator[Registry]":
        from lakehouse.runtime.schema_registry import registry

        try:
            yield registry(self._settings)
        except RegistryAway as err:
            raise SinkAway(f"topic={self._topic}: {err}") from err
