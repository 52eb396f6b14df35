"""The lines of existing files, to be sent as they are."""

import gzip
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from lakehouse.errors import SettingsError

STDIN = "-"


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
