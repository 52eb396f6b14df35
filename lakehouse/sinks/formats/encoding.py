"""A row and its key as text: JSON that a `kafka(...)` source reads back.

Nulls are left out, so that a column that is added later changes no row, also those of a map. Decimals
are texts, because many readers take a number of JSON for a double. Instants are ISO 8601 in UTC. Minus
nought is nought, because Spark takes the two for one value of a key.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from lakehouse.declare.targets import Row
from lakehouse.errors import SinkError
from lakehouse.storage.delta.python_years import RULE

if TYPE_CHECKING:
    import pyarrow as pa


FIX = "correct it in the table, or leave its row out"
BEYOND = f"{RULE}; {FIX}"


def rows_of(rows: "pa.Table") -> list[Row]:
    """Returns the rows, each map as a dictionary: as Arrow has maps, an empty one would be an empty array.

    Raises SinkError for an instant that Python does not have.
    """
    try:
        return rows.to_pylist(maps_as_pydicts="lossy")
    except OverflowError:
        for name in rows.column_names:  # which one is it?
            try:
                listed(rows[name])
            except SinkError as err:
                raise SinkError(f"column={name}, {err}") from err
        raise


def listed(column: "pa.Array | pa.ChunkedArray") -> list[object]:
    """Returns the values of one column, as `rows_of` has them. Raises SinkError as that does."""
    try:
        return column.to_pylist(maps_as_pydicts="lossy")
    except OverflowError as err:
        raise SinkError(f"value={err}: {BEYOND}") from err


def value_of(row: Row) -> str:
    """Returns the row as a JSON object, its columns in their order."""
    return _json({name: _plain(value) for name, value in row.items() if value is not None})


def json_of(value: object) -> str:
    """Returns one value as JSON."""
    return _json(_plain(value))


def text_of(value: object) -> str:
    """Returns a value as text: JSON, without the quotation marks of a text."""
    plain = _plain(value)
    return plain if isinstance(plain, str) else _json(plain)


def key_of(row: Row, key: Sequence[str]) -> str:
    """Returns the key of a row: the text of one column, or a JSON object of several.

    Raises SinkError for one column that is null, by which no row is found.
    """
    if len(key) > 1:
        return _json({name: _plain(row[name]) for name in key})
    value = row[key[0]]
    if value is None:
        raise SinkError(
            f"key={key[0]}: a row in which it is null has no key; leave such rows out of the table, or add a column to the key"
        )
    return text_of(value)


# made once: json.dumps makes one for each value
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _plain(value: object) -> object:
    """Returns the value as JSON has it."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {text_of(name): _plain(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)  # a decimal


def _instant(value: datetime) -> str:
    """Returns an instant as text: microseconds only where there are some, a zone unless the column has none."""
    text = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    return text.isoformat() + ("Z" if value.tzinfo else "")
