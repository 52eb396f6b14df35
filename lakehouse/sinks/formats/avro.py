"""Rows as Avro with a schema registry: each column of a table is a field that may be null.

A value begins with the byte 0 and the four bytes of its schema's id (Confluent's wire format).
"""

import io
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lakehouse.declare.targets import Row
from lakehouse.errors import SinkError
from lakehouse.sinks.formats.encoding import value_of
from lakehouse.sinks.formats.kinds import Kind, kind_of
from lakehouse.storage.position.schemas import HEAD

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: dict[Kind | None, str] = {
    "boolean": "boolean",
    "int64": "long",
    "integer": "int",
    "float32": "float",
    "floating": "double",
    "binary": "bytes",
    "string": "string",
}


def schema_of(table: str, columns: "pa.Schema") -> dict[str, Any]:
    """Returns the schema of a table's rows: a record of that name.

    :raises SinkError: for a column whose name or type Avro does not have.
    """
    return _record(table, columns, table)


def encoder(schema: Mapping[str, Any], number: int) -> Callable[[Row], bytes]:
    """Returns a function that writes rows by a schema, which has that id at the registry."""
    import fastavro

    parsed, head = fastavro.parse_schema(dict(schema)), b"\0" + number.to_bytes(4)

    def encoded(row: Row) -> bytes:
        out = io.BytesIO()
        out.write(head)
        fastavro.schemaless_writer(out, parsed, row)
        return out.getvalue()

    return encoded


def decoded(value: bytes, text: str) -> str:
    """Returns a value, by the text of its schema, as `encoding` writes its row. Raises ValueError if it is none."""
    import fastavro

    parsed = fastavro.parse_schema(json.loads(text))
    content = io.BytesIO(value[HEAD:])
    try:
        row = fastavro.schemaless_reader(content, parsed)
    except Exception as err:  # bytes of something else raise whatever they happen to mean
        raise ValueError(f"it is not Avro of that schema: {err!r}") from err
    if content.read(1) or not isinstance(row, dict):
        raise ValueError("it is not one record of that schema")
    return value_of(row)


def _record(name: str, columns: "pa.Schema | pa.StructType", place: str) -> dict[str, Any]:
    fields = []
    for column in columns:
        at = f"{place}.{column.name}"
        if not _NAME.fullmatch(column.name):
            raise SinkError(
                f"column={at}: a name in Avro has letters, digits and '_', no digit first; rename the column, or publish as JSON"
            )
        type_ = ["null", _type(column.type, f"{name}_{column.name}", at)]
        fields.append({"name": column.name, "type": type_, "default": None})
    return {"type": "record", "name": name, "fields": fields}


def _type(type_: "pa.DataType", name: str, place: str) -> object:
    """Returns Avro's type. A record gets the `name`, which no other record of the schema may have."""
    kind = kind_of(type_)
    if kind == "struct":
        return _record(name, type_, place)
    if kind == "map":
        if kind_of(type_.key_type) != "string":
            raise SinkError(
                f"column={place}: keys of a map in Avro are text, and these are {type_.key_type}; cast them, or publish as JSON"
            )
        return {"type": "map", "values": ["null", _type(type_.item_type, name, place)]}
    if kind == "list":
        return {"type": "array", "items": ["null", _type(type_.value_type, name, place)]}
    if kind == "decimal":
        logical = {"type": "bytes", "logicalType": "decimal"}
        return logical | {"precision": type_.precision, "scale": type_.scale}
    if kind == "timestamp":
        clock = "timestamp-micros" if type_.tz else "local-timestamp-micros"
        return {"type": "long", "logicalType": clock}
    if kind == "date":
        return {"type": "int", "logicalType": "date"}
    if kind not in _PLAIN:
        raise SinkError(
            f"column={place}: Avro has no type for {type_}; cast the column, or publish as JSON"
        )
    return _PLAIN[kind]
