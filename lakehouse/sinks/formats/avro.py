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
from lakehouse.storage.position.schemas import HEAD

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def schema_of(table: str, columns: "pa.Schema") -> dict[str, Any]:
    """The schema of a table's rows: a record of that name.

    :raises SinkError: for a column whose name or type Avro does not have.
    """
    return _record(table, columns, table)


def encoder(schema: Mapping[str, Any], number: int) -> Callable[[Row], bytes]:
    """What writes rows by a schema that has that id at the registry."""
    import fastavro

    parsed, head = fastavro.parse_schema(dict(schema)), b"\0" + number.to_bytes(4)

    def encoded(row: Row) -> bytes:
        out = io.BytesIO()
        out.write(head)
        fastavro.schemaless_writer(out, parsed, row)
        return out.getvalue()

    return encoded


def decoded(value: bytes, text: str) -> str:
    """A value, by the text of its schema, as `encoding` writes its row. Raises ValueError if it is none."""
    import fastavro

    parsed = fastavro.parse_schema(json.loads(text))
    content = io.BytesIO(value[HEAD:])
    try:
        row = fastavro.schemaless_reader(content, parsed)
    except Exception as err:  # of bytes that are none it raises what they happen to mean
        raise ValueError(f"it is not Avro of that schema: {err!r}") from err
    if content.read(1) or not isinstance(row, dict):
        raise ValueError("it is not one record of that schema")
    return value_of(row)


def _record(name: str, fields: "pa.Schema | pa.StructType", place: str) -> dict[str, Any]:
    found = []
    for each in fields:
        at = f"{place}.{each.name}"
        if not _NAME.fullmatch(each.name):
            raise SinkError(
                f"column={at}: a name in Avro has letters, digits and '_', no digit first; rename the column, or publish as JSON"
            )
        kind = ["null", _type(each.type, f"{name}_{each.name}", at)]
        found.append({"name": each.name, "type": kind, "default": None})
    return {"type": "record", "name": name, "fields": found}


def _type(of: "pa.DataType", name: str, place: str) -> object:
    """`name`: of a record; no two of a schema may have the same."""
    import pyarrow as pa

    if pa.types.is_struct(of):
        return _record(name, of, place)
    if pa.types.is_map(of):
        if not pa.types.is_string(of.key_type):
            raise SinkError(
                f"column={place}: keys of a map in Avro are text, and these are {of.key_type}; cast them, or publish as JSON"
            )
        return {"type": "map", "values": ["null", _type(of.item_type, name, place)]}
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        return {"type": "array", "items": ["null", _type(of.value_type, name, place)]}
    if pa.types.is_decimal(of):
        return _logical("bytes", "decimal", precision=of.precision, scale=of.scale)
    if pa.types.is_timestamp(of):
        return _logical("long", "timestamp-micros" if of.tz else "local-timestamp-micros")
    if pa.types.is_date(of):
        return _logical("int", "date")
    kinds: dict[str, Callable[[Any], bool]] = {
        "boolean": pa.types.is_boolean,
        "long": pa.types.is_int64,
        "int": pa.types.is_integer,
        "float": pa.types.is_float32,
        "double": pa.types.is_floating,
        "bytes": lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
        "string": lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
    }
    found = next((kind for kind, fits in kinds.items() if fits(of)), None)
    if found is None:
        raise SinkError(
            f"column={place}: Avro has no type for {of}; cast the column, or publish as JSON"
        )
    return found


def _logical(kind: str, name: str, **more: int) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}
