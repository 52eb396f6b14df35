"""Columns of Arrow as text, byte for byte as `encoding` writes each value.

Arrow writes a whole column in a fraction of the time. `encoding` writes the values that Arrow writes in another way,
such as a very small double or a text with quotation marks in it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import SinkError
from lakehouse.sinks.formats.encoding import BEYOND, json_of, key_of, listed, text_of
from lakehouse.storage.delta.python_years import DATES, INSTANTS
from lakehouse.storage.delta.python_years import text_of as text_of_instant

# texts are made of so much at once, so that a large version needs little memory beside its rows
_ROWS, _BYTES = 10_000, 1 << 25
_ESCAPED = '[\\x00-\\x1f"\\\\]'  # the characters of a text that JSON has in another way
_USUAL = (1e-4, 1e10)  # doubles, between which Arrow and Python write the same digits


def parts(rows: pa.Table) -> Iterator[pa.Table]:
    """Yields the rows in their order, as many at once as texts are made of."""
    count = rows.num_rows
    if count > _ROWS or (count > 1 and rows.nbytes > _BYTES):
        yield from parts(rows.slice(0, count // 2))
        yield from parts(rows.slice(count // 2))
    elif count:
        yield rows


def values_of(rows: pa.Table) -> list[str]:
    """Returns each row as `value_of` writes it."""
    fields = ((name, cells(rows, name, json_of)) for name in rows.column_names)
    return _objects(fields, rows.num_rows).to_pylist()


def keys_of(rows: pa.Table, key: Sequence[str]) -> list[str]:
    """Returns the key of each row as `key_of` writes it. Raises SinkError as that does."""
    if len(key) > 1:
        fields = (
            (name, pc.coalesce(cells(rows, name, json_of), "null")) for name in dict.fromkeys(key)
        )
        return _objects(fields, rows.num_rows).to_pylist()
    if rows[key[0]].null_count:
        key_of({key[0]: None}, key)
    return cells(rows, key[0], text_of).to_pylist()


def cells(rows: pa.Table, name: str, one: Callable[[object], str]) -> pa.Array:
    """Returns a column as `one` writes its values, which is `json_of` or `text_of`; null where it is null."""
    try:
        return _texts(rows[name].combine_chunks(), one)
    except SinkError as err:
        raise SinkError(f"column={name}, {err}") from err


def _texts(column: pa.Array, one: Callable[[object], str]) -> pa.Array:
    type_, types = column.type, pa.types
    mark = '"' if one is json_of else ""
    if types.is_string(type_):
        if not mark:
            return column
        return _but(_marked(column, mark), pc.match_substring_regex(column, _ESCAPED), column, one)
    if types.is_boolean(type_) or types.is_integer(type_):
        return column.cast(pa.string())
    if types.is_decimal(type_):
        return _marked(column.cast(pa.string()), mark)
    if types.is_timestamp(type_) and type_.unit == "us":
        return _marked(_instants(column), mark)
    if types.is_date32(type_):
        _check_years(column, pa.int32(), DATES)
        return _marked(column.cast(pa.string()), mark)
    if types.is_float64(type_) or types.is_float32(type_):
        return _doubles(column.cast(pa.float64()), one)
    if types.is_struct(type_):
        fields = (
            (type_.field(n).name, _texts(column.field(n), json_of)) for n in range(type_.num_fields)
        )
        return pc.if_else(column.is_valid(), _objects(fields, len(column)), None)
    if types.is_list(type_) or types.is_large_list(type_):
        return _lists(column)
    return _one_by_one(column, one)


def _objects(fields: Iterable[tuple[str, pa.Array]], count: int) -> pa.Array:
    """Returns objects of JSON with these fields, whose values are JSON; those that are null are left out."""
    members = [pc.binary_join_element_wise(f",{json_of(name)}:", part, "") for name, part in fields]
    if not members:
        return pa.array(["{}"] * count, pa.string())
    within = pc.binary_join_element_wise(*members, "", null_handling="replace")
    # a brace in the place of the first comma
    return pc.binary_join_element_wise(pc.utf8_replace_slice(within, 0, 1, "{"), "}", "")


def _lists(column: pa.Array) -> pa.Array:
    lengths = pc.list_value_length(column).fill_null(0).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    starts = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    # of lists that are null `flatten` has nothing
    texts = pc.coalesce(_texts(column.flatten(), json_of), "null")
    within = pc.binary_join(pa.LargeListArray.from_arrays(starts, texts), ",")
    return pc.if_else(column.is_valid(), pc.binary_join_element_wise("[", within, "]", ""), None)


def _instants(column: pa.Array) -> pa.Array:
    _check_years(column, pa.int64(), INSTANTS)
    # the same microseconds without a zone: with one, Arrow would look it up
    texts = pc.utf8_replace_slice(column.view(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    texts = pc.replace_substring(texts, ".000000", "")
    return pc.binary_join_element_wise(texts, "Z" if column.type.tz else "", "")


def _check_years(column: pa.Array, as_number: pa.DataType, within: tuple[int, int]) -> None:
    ends = pc.min_max(column.view(as_number))
    for end, beyond in ((ends["min"], pc.less), (ends["max"], pc.greater)):
        if beyond(end, within[beyond is pc.greater]).as_py():
            value = pa.array([end], as_number).view(column.type)[0]
            raise SinkError(f"value={text_of_instant(value)}: {BEYOND}")


def _doubles(column: pa.Array, one: Callable[[object], str]) -> pa.Array:
    column = pc.add(column, 0.0)  # minus nought becomes nought
    size, (least, greatest) = pc.abs(column), _USUAL
    usual = pc.and_(pc.greater_equal(size, least), pc.less(size, greatest))
    unusual = pc.invert(pc.or_(usual, pc.equal(size, 0.0)))
    # whole ones Arrow writes without a point
    end = pc.if_else(pc.equal(column, pc.trunc(column)), ".0", "")
    texts = pc.binary_join_element_wise(column.cast(pa.string()), end, "")
    return _but(texts, unusual, column, one)


def _but(
    texts: pa.Array, other: pa.Array, column: pa.Array, one: Callable[[object], str]
) -> pa.Array:
    """Returns the texts, but for those of `other` values of the column, which `one` writes."""
    other = other.fill_null(False)
    if not other.true_count:
        return texts
    return pc.replace_with_mask(texts, other, _one_by_one(column.filter(other), one))


def _one_by_one(column: pa.Array, one: Callable[[object], str]) -> pa.Array:
    texts = [None if value is None else one(value) for value in listed(column)]
    return pa.array(texts, pa.string())


def _marked(texts: pa.Array, mark: str) -> pa.Array:
    return pc.binary_join_element_wise(mark, texts, mark, "") if mark else texts
