"""The schemas of a registry by which an ingest table's messages were written, kept beside its commit log.

The schema of an id never changes. A schema that is kept here decodes a message as it was decoded
first, without the registry, and after the registry is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout
from lakehouse.storage.disk.notes import Notes
from lakehouse.storage.disk.typed_values import typed

HEAD = 5  # bytes of a value before its payload: the byte 0, and the four bytes of its schema's id


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as the registry has it. `imports`: all files that a Protobuf schema refers to, as pairs of name and text."""

    id: int
    type: str  # AVRO, JSON, PROTOBUF
    text: str
    imports: tuple[tuple[str, str], ...] = ()


def number_of(value: bytes) -> int | None:
    """Returns the id of the schema of a value; None if the value names none."""
    return int.from_bytes(value[1:HEAD]) if len(value) >= HEAD and value[0] == 0 else None


def kept(settings: Settings, table: Table) -> Mapping[int, Schema]:
    """Returns the schemas that the table's messages have had, by id."""
    return {each.id: each for each in _notes(settings, table).newest_first()}


def keep(settings: Settings, table: Table, schema: Schema) -> None:
    _notes(settings, table).append(schema)


def _notes(settings: Settings, table: Table) -> Notes[Schema]:
    return Notes(layout.note(settings, table, "schemas.jsonl"), partial(typed, Schema))
