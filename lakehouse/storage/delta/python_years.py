"""The years 1 to 9999, all that Python has for instants and dates: a row with another is named, not left to an OverflowError."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakehouse.errors import LakehouseError

if TYPE_CHECKING:
    import pyarrow as pa

RULE = "an instant or a date must be in the years 1 to 9999, because Python and JSON know no others"
INSTANTS = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # microseconds since 1970
DATES = (-719_162, 2_932_896)  # days


def check(
    rows: "pa.Table",
    where: str,
    error: type[LakehouseError],
    fix: str,
    keys: Sequence[str] = (),
    before: int = 0,
) -> None:
    """Raises `error` for the first row with an instant or a date of another year.

    It names the row by its `keys`, or its number after the rows `before`. `where`: a text that says which rows these are.
    """
    found = _first(rows)
    if found is None:
        return
    column, row = found
    texts = [f"{name}={_shown(rows[name][row])}" for name in keys if name in rows.column_names]
    named = ", ".join(texts) or f"row={before + row + 1}"
    raise error(f"{where}, {named}, {column}={_shown(rows[column][row])}: {RULE}; {fix}")


def are_in_python(rows: "pa.Table") -> bool:
    """Returns True if Python has all instants and dates of the rows."""
    return _first(rows) is None


def _first(rows: "pa.Table") -> tuple[str, int] | None:
    """Returns the first column with a value of another year, and its first such row; None if there is none."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if any(_has_beyond(part) for part in column.chunks):
            # the check of a sliced map includes entries outside the slice, so this chunk may have none
            for row, value in enumerate(column):
                if not _is_in_python(value):
                    return name, row
    return None


def _has_beyond(values: "pa.Array") -> bool:
    """Returns True if there is an instant or a date of another year, at any depth."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, types = values.type, pa.types
    if types.is_map(kind):
        return _has_beyond(values.keys) or _has_beyond(values.items)
    if types.is_struct(kind):
        return any(_has_beyond(field) for field in values.flatten())
    if types.is_nested(kind):
        return _has_beyond(values.flatten())
    if types.is_timestamp(kind) and kind.unit == "us":
        numbers, limits = values.view(pa.int64()), INSTANTS
    elif types.is_date32(kind):
        numbers, limits = values.view(pa.int32()), DATES
    else:
        return False
    ends = pc.min_max(numbers)
    least, greatest = ends["min"].as_py(), ends["max"].as_py()
    return least is not None and (least < limits[0] or greatest > limits[1])


def _is_in_python(value: "pa.Scalar") -> bool:
    try:
        value.as_py()
    except (OverflowError, ValueError):
        return False
    return True


def _shown(value: "pa.Scalar") -> str:
    """Returns a value as text, even if Python has no value for it."""
    import pyarrow as pa

    if _is_in_python(value):
        return str(value.as_py())
    return "a value in it" if pa.types.is_nested(value.type) else text_of(value)


def text_of(value: "pa.Scalar") -> str:
    """Returns an instant or a date as text, by NumPy: Arrow writes another year for one above 32,767."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_date32(value.type):
        return str(np.datetime64(value.value, "D"))
    return str(np.datetime64(value.value, "us"))
