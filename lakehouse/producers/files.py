"""The lines of existing files, to be sent as they are, each as a message of a topic."""

import gzip
import json
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from lakehouse.errors import SettingsError
from lakehouse.producers.workload import ORDINARY, Record

STDIN = "-"
_ANY = -1  # partition: the client chooses it by the key


def lines(files: Sequence[str]) -> Iterator[bytes]:
    """Yields every line of the files, without its end, one file after the other.

    `.gz` is unpacked, `-` is standard input. Raises SettingsError; for a missing file before the first line.
    """
    for file in files:
        if file != STDIN and not Path(file).is_file():
            raise SettingsError(
                f"file={file!r}: a file of lines, plain or .gz, or - for standard input; there is no such file"
            )
    return _read(files)


def _read(files: Sequence[str]) -> Iterator[bytes]:
    for file in files:
        try:
            with _opened(file) as opened:
                for line in opened:
                    yield line.rstrip(b"\r\n")
        except (OSError, EOFError, zlib.error) as err:
            raise SettingsError(
                f"file={file!r}: it cannot be read to its end ({err}); correct the file and send the rest of it"
            ) from err


def _opened(file: str) -> IO[bytes] | gzip.GzipFile:
    if file == STDIN:
        return sys.stdin.buffer
    return gzip.open(file) if file.endswith(".gz") else open(file, "rb")


def messages(lines: Iterable[bytes], key: str | None = None) -> Iterator[Record]:
    """Yields a message for each line that is not empty, keyed by the field `key`. Raises SettingsError."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield Record(
                _key(line, number, key) if key else None,
                line,
                _ANY,
                int(time.time() * 1000),
                None,
                ORDINARY,
            )


def _key(line: bytes, number: int, name: str) -> bytes:
    try:
        # numbers as they are written: doubles would change 1.10 and 12345678901234567.89
        value = json.loads(line, parse_int=str, parse_float=str)[name]
        if value is None:
            raise TypeError("null")
    except (ValueError, KeyError, TypeError) as err:
        raise SettingsError(
            f"line={number}, key={name!r}: the key is a field of each line's JSON object, and this one lacks it ({err!r}); "
            "correct the line and send it with those after it, or leave out --key"
        ) from err
    return (value if isinstance(value, str) else json.dumps(value)).encode()
