"""The mapping of a table's columns to fields of an index of OpenSearch.

A document holds its row as `encoding` writes it, whatever the mapping. The mapping decides what a search finds.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lakehouse.sinks.formats.kinds import Kind, kind_of

if TYPE_CHECKING:
    import pyarrow as pa

Properties = dict[str, dict[str, Any]]
_WORDS = 256  # characters up to which a text can be sorted and grouped by, as where an index maps a text by itself
_DOUBLE = {"type": "double", "ignore_malformed": True}
# integers and floats of every width are mapped alike, so that a column may be widened
_FIELDS: dict[Kind | None, dict[str, Any]] = {
    "map": {"type": "object", "enabled": False},  # else each key would be a field of its own
    # a document has a decimal as text; infinite doubles are held, and found by no search
    "decimal": _DOUBLE,
    "float32": _DOUBLE,
    "floating": _DOUBLE,
    "boolean": {"type": "boolean"},
    "int64": {"type": "long"},
    "integer": {"type": "long"},
    "timestamp": {"type": "date"},
    "date": {"type": "date"},
    "binary": {"type": "binary"},
}
_TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": _WORDS}}}


def properties(columns: "Iterable[pa.Field]") -> Properties:
    """Returns the fields of a table's columns. A name with dots is a field of objects, as OpenSearch itself reads it."""
    mapped: Properties = {}
    for column in columns:
        *around, name = column.name.split(".")
        fields = mapped
        for part in around:
            fields = fields.setdefault(part, {}).setdefault("properties", {})
        own = _mapped(column.type)
        inner = fields.get(name, {}).get("properties", {})
        fields[name] = own | ({"properties": own.get("properties", {}) | inner} if inner else {})
    return mapped


def lacking(wanted: Mapping[str, Any], existing: Mapping[str, Any]) -> Properties:
    """Returns the fields of `wanted` that an index lacks, also within structs. A field mapped otherwise is the user's choice."""
    missing: Properties = {}
    for name, field in wanted.items():
        if name not in existing:
            missing[name] = field
        elif "properties" in field:
            within = lacking(field["properties"], existing[name].get("properties", {}))
            missing |= {name: {"properties": within}} if within else {}
    return missing


def _mapped(type_: "pa.DataType") -> dict[str, Any]:
    kind = kind_of(type_)
    if kind == "list":
        return _mapped(type_.value_type)  # every field may have several values
    if kind == "struct":
        return {"properties": properties(type_)}
    return _FIELDS.get(kind, _TEXT)
