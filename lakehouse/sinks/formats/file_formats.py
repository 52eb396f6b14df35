"""Rows as the content of a file, and back: Parquet, CSV, JSON.

Values come back as JSON has them where the format has no types of its own.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from lakehouse.declare.targets import Row
from lakehouse.sinks.formats.encoding import rows_of, text_of, value_of

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["parquet", "csv", "json"]
# types of Arrow whose values are no texts in JSON
_NO_TEXT = ("int", "uint", "float", "double", "halffloat", "bool", "struct", "list", "map")


def encoded(format: Format, rows: Sequence[Row], schema: "pa.Schema") -> bytes:
    """Returns the content of a file of these rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if format == "json":
        return "".join(f"{value_of(row)}\n" for row in rows).encode()
    if format == "csv":
        lines = [dict(zip(schema.names, schema.names, strict=True)), *rows]
        cells = ((_cell(row.get(name)) for name in schema.names) for row in lines)
        return "".join(",".join(line) + "\n" for line in cells).encode()
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema), sink)
    return sink.getvalue().to_pybytes()


def decoded(format: Format, content: bytes, types: Mapping[str, str]) -> list[Row]:
    """Returns the rows of a file. `types` are those of the columns, as Arrow names them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if format == "json":
        return [json.loads(line) for line in content.decode().split("\n") if line]
    if format == "csv":
        return [_of_texts(row, types) for row in _texts(content)]
    return rows_of(pq.read_table(pa.BufferReader(content)))


def _cell(value: object) -> str:
    return "" if value is None else '"' + text_of(value).replace('"', '""') + '"'


def _texts(content: bytes) -> list[dict[str, str | None]]:
    """Returns the cells of CSV. Only a cell without quotation marks is null, which the module `csv` does not say."""
    import pyarrow as pa
    from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

    header = next(csv.reader([content.partition(b"\n")[0].decode()]))
    texts = ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parse = ParseOptions(newlines_in_values=True)
    # in one piece: a row that does not fit into one is refused
    whole = ReadOptions(block_size=len(content) + 1)
    return read_csv(pa.BufferReader(content), whole, parse, texts).to_pylist()


def _of_texts(row: Mapping[str, str | None], types: Mapping[str, str]) -> Row:
    def value(name: str, text: str | None) -> object:
        # a file may have a column that the table has not any more
        if text is None or not types.get(name, "").startswith(_NO_TEXT):
            return text
        try:
            return json.loads(text)
        except ValueError:  # a double that is no number
            return text

    return {name: value(name, text) for name, text in row.items()}
