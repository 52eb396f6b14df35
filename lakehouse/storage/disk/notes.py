"""Notes that grow: small files with one JSON object a line, to which values are appended.

One rule holds for all. A value is on disk when `append` returns. A line that a crash has torn is left out when it is
read; a line that holds something else is left out, too, and named on standard error. A note with a limit becomes the
older one beside it when it is longer; the owner of another note replaces it by the values that it still needs.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lakehouse.logs import warn_once
from lakehouse.storage.disk import text_logs
from lakehouse.storage.disk.files import append_line, lines_backwards, replace_text

_log = logging.getLogger(__name__)

Value = TypeVar("Value")


class Notes(Generic[Value]):
    """The values of one note. `decode` makes one of the JSON of a line. `limit`: bytes, after which a new note begins."""

    def __init__(
        self, path: Path, decode: Callable[[Any], Value], *, limit: int | None = None
    ) -> None:
        self.path, self._decode, self._limit = path, decode, limit

    def append(self, *values: object) -> None:
        """Adds values. Raises OSError if they are not on disk whole."""
        if self._limit is not None and text_logs.size(self.path) > self._limit:
            text_logs.set_aside(self.path, kept=1)
        append_line(self.path, "\n".join(map(encoded, values)))

    def replace(self, values: Iterable[object]) -> None:
        """Makes these values the note's, the oldest first, in one step."""
        replace_text(self.path, "".join(f"{encoded(value)}\n" for value in values))

    def newest_first(self) -> Iterator[Value]:
        """Returns the values, the latest first."""
        any_whole = False
        for line in lines_backwards(self.path):
            any_whole = True
            try:
                value = self._decode(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError) as err:
                message = (
                    f"file={self.path}: a line holds one JSON object as the lakehouse writes it, and one is torn "
                    f"({type(err).__name__}: {err}); it is left out"
                )
                warn_once(_log, message, self.path, line)
                continue
            yield value
        if not any_whole and self.path.exists():
            message = f"file={self.path}: a line holds one whole JSON object, and it has no such line; it counts as gone"
            warn_once(_log, message, self.path, "no line")


def encoded(value: object) -> str:
    """Returns a value as the JSON of one line."""
    return json.dumps(value, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> object:
    if is_dataclass(value):
        return fields_of(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields by name. `asdict` copies what is in them, too, a third of the CPU of a commit's line."""
    return {field.name: getattr(value, field.name) for field in fields(value)}
