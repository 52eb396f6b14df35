"""Events of one's own: a JSON object a line, each a message of a topic."""

import json
import time
from collections.abc import Iterable, Iterator

from lakehouse.errors import SettingsError
from lakehouse.producers.workload import ORDINARY, Record

_ANY = -1  # partition: the client takes it by the key


def messages(lines: Iterable[bytes], key: str | None = None) -> Iterator[Record]:
    """A message for each line that is not empty, as it is. `key`: the field that is its key.

    Raises SettingsError.
    """
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
        value = json.loads(line)[name]
    except (ValueError, KeyError, TypeError) as err:
        raise SettingsError(
            f"line={number}, key={name!r}: the key is a field of each line's JSON object, and this one has none ({err!r}); the "
            "lines before have been sent; correct the line, or leave out --key"
        ) from err
    return str(value).encode()
