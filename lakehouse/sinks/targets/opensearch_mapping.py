"""How an index of OpenSearch maps the columns of a table.

A document holds its row as `encoding` writes it, whatever the mapping. The mapping decides what a search finds.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Properties = dict[str, dict[str, Any]]
_WORDS = 256  # characters up to which a text can be sorted and grouped by, as where an index maps a text by itself


def properties(columns: "Iterable[pa.Field]") -> Properties:
    """What the columns of a table are mapped to. A name with dots is a field of objects, as OpenSearch itself reads it."""
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


def lacking(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> Properties:
    """What of `wanted` an index does not map yet, also within structs. What it maps otherwise is the user's choice."""
    found: Properties = {}
    for name, of in wanted.items():
        if name not in there:
            found[name] = of
        elif "properties" in of and (
            deeper := lacking(of["properties"], there[name].get("properties", {}))
        ):
            found[name] = {"properties": deeper}
    return found


def _mapped(of: "pa.DataType") -> dict[str, Any]:
    """Integers and floats of every width are mapped alike, so that a column may be widened."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_map(of):
        return {"type": "object", "enabled": False}  # each key would be a field of its own
    if is_.is_list(of) or is_.is_large_list(of):
        return _mapped(of.value_type)  # every field may have several values
    if is_.is_struct(of):
        return {"properties": properties(of)}
    if is_.is_decimal(of) or is_.is_floating(of):
        # a document has a decimal as text; infinite doubles are held, and found by no search
        return {"type": "double", "ignore_malformed": True}
    kinds = {
        "boolean": is_.is_boolean,
        "long": is_.is_integer,
        "date": lambda t: is_.is_timestamp(t) or is_.is_date(t),
        "binary": lambda t: is_.is_binary(t) or is_.is_large_binary(t),
    }
    if simple := next((name for name, fits in kinds.items() if fits(of)), ""):
        return {"type": simple}
    word = {"type": "keyword", "ignore_above": _WORDS}
    return {"type": "text", "fields": {"keyword": word}}
