"""Events of your own: a JSON object a line, each a message of a topic."""

import json
import time
from collections.abc import Iterable, Iterator

from lakehouse.errors import SettingsError
from lakehouse.producers.workload import ORDINARY, Record

_ANY = -1  # partition: the client chooses it by the key


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
