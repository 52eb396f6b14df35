"""The schemas of a registry by which an ingest table's messages were written, kept beside its commit log.

The schema of an id never changes. What is kept here decodes a message as it was decoded first,
without the registry, and after the registry is gone.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from lakehouse.declare.table import Table
from lakehouse.settings import Settings
from lakehouse.storage import layout
from lakehouse.storage.files import append_line, values_backwards


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as the registry has it."""

    id: int
    type: str  # AVRO, JSON, PROTOBUF
    text: str


def kept(settings: Settings, table: Table) -> Mapping[int, Schema]:
    """The schemas that the table's messages have had, by id."""
    path = layout.note(settings, table, "schemas.jsonl")
    return {each.id: each for each in values_backwards(path, lambda value: Schema(**value))}


def keep(settings: Settings, table: Table, schema: Schema) -> None:
    append_line(layout.note(settings, table, "schemas.jsonl"), json.dumps(asdict(schema)))
