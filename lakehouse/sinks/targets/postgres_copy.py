"""Rows as PostgreSQL's COPY reads them: CSV, in which what is null has no quotation marks, and all else has."""

import base64
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import WriteOptions, write_csv

from lakehouse.declare.targets import Target
from lakehouse.errors import SinkError


def content(target: Target, cells: pa.Table, types: Mapping[str, str]) -> bytes:
    """These cells, `types` as PostgreSQL names those of their columns.

    Raises SinkError for a key that is null and for a text that PostgreSQL cannot hold.
    """
    if null := [name for name in target.key if cells[name].null_count]:
        raise SinkError(
            f"target={target.name}, key={null[0]}: a row in which it is null has no key; leave such rows out of the "
            "table, or choose other columns"
        )
    for place, name in enumerate(cells.column_names):
        if types[name] == "text":
            _check_texts(target, cells, name)
        elif types[name] == "bytea":
            cells = cells.set_column(place, name, [[*map(_hex, cells[name].to_pylist())]])
    sink = pa.BufferOutputStream()
    write_csv(cells, sink, WriteOptions(include_header=False, quoting_style="all_valid"))
    return sink.getvalue().to_pybytes()


def _check_texts(target: Target, cells: pa.Table, name: str) -> None:
    has_nul = pc.match_substring(cells[name], "\0")
    if pc.any(has_nul).as_py():
        [first, *_] = cells.filter(has_nul.fill_null(False)).to_pylist()
        key = ", ".join(f"{each}={first[each]!r}" for each in target.key)
        raise SinkError(
            f"target={target.name}, column={name}, {key}: PostgreSQL holds no text with the character NUL (\\u0000); "
            "replace it in the table's function, or leave such rows out of the table"
        )


def _hex(text: str | None) -> str | None:
    """Bytes as PostgreSQL reads them, of their text in `encoding`."""
    return None if text is None else f"\\x{base64.b64decode(text).hex()}"
