"""The rows of a query as a file on standard output: CSV or Parquet."""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from lakehouse.cli import console
from lakehouse.errors import QueryError, RangeError

if TYPE_CHECKING:
    import pyarrow

_SPECIAL = re.compile(r'[",\r\n]')  # a field with one of these is quoted


def write_csv(names: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes rows as RFC 4180 has it: nothing for null, `""` for an empty text, JSON for a nested value.

    A null that is alone in its row is `""` too, because readers skip an empty line. Raises QueryError, before anything is
    written, for bytes that are not UTF-8.
    """
    lines = [_line(list(names))]
    for number, row in enumerate(rows, 1):
        try:
            lines.append(_line([_field(value) for value in row]))
        except UnicodeDecodeError as err:
            raise QueryError(
                f"format=csv, row={number}, value={err.object[:20]!r}: these bytes are no UTF-8; select encode(COLUMN, 'hex')"
            ) from err
    with _standard_output() as output:
        output.writelines(lines)


def _line(fields: list[str] | list[str | None]) -> str:
    shown = ["" if field is None else _quoted(field) for field in fields]
    return (",".join(shown) or '""') + "\r\n"


def _quoted(field: str) -> str:
    if field and not _SPECIAL.search(field):
        return field
    doubled = field.replace('"', '""')
    return f'"{doubled}"'


def _field(value: object) -> str | None:
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, default=_text, ensure_ascii=False)
    return None if value is None else _text(value)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else console.plain(value)


def check_no_terminal() -> None:
    """Raises RangeError if standard output is a terminal, which cannot show a file of bytes."""
    if sys.stdout.isatty():
        raise RangeError(
            "format=parquet: a file is bytes, which a terminal cannot show; write it to a file: `> rows.parquet`"
        )


def write_parquet(rows: "pyarrow.Table") -> None:
    """Writes rows with the types that they have. Raises QueryError for a type that Parquet lacks."""
    import pyarrow as pa

    from lakehouse.storage.delta import delta_tables

    try:
        with _standard_output() as output:
            delta_tables.write_parquet(rows, output.buffer)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as err:
        raise QueryError(
            f"format=parquet: {err}; cast the column to text (CAST(... AS VARCHAR)), or leave it out"
        ) from err


@contextmanager
def _standard_output() -> Iterator[TextIO]:
    """Yields standard output, and writes all of it before the block ends. An OSError names it as its file."""
    try:
        yield sys.stdout
        sys.stdout.flush()
    except OSError as err:
        err.filename = "standard output"
        raise
