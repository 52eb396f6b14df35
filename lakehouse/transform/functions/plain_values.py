"""A state as text, and back exactly, so that a key goes on as if its state had never left memory.

Values that JSON lacks are objects with their kind under "$". A list or dict that is in a state twice
becomes one again: the second time it is written as a reference to the first, by number.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from lakehouse.errors import DeclarationError

_KIND, _VALUE = "$", "v"
_MICROSECOND = timedelta(microseconds=1)
_AS_THEY_ARE = (type(None), bool, int, float, str)
_TEXTS: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: (lambda value: b64encode(value).decode(), b64decode),
    date: (date.isoformat, date.fromisoformat),
    Decimal: (str, Decimal),
    timedelta: (lambda value: value // _MICROSECOND, lambda number: number * _MICROSECOND),
}
_BY_NAME = {kind.__name__: read for kind, (_, read) in _TEXTS.items()}


def written(value: Any) -> str:
    """Returns the value as text. Raises DeclarationError for a value that would not come back as it was."""
    return json.dumps(_Writer().plain(value), separators=(",", ":"))


def read(text: str) -> Any:
    """Returns the value that `written` was given."""
    return _Reader().value(json.loads(text))


class _Writer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # of lists and dicts, by identity, in the order of visit

    def plain(self, value: Any) -> Any:
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if kind in (list, dict):
            if id(value) in self._numbers:
                return _tagged("same", self._numbers[id(value)])
            self._numbers[id(value)] = len(self._numbers)
            return self._list(value) if kind is list else self._dict(value)
        if kind is tuple:
            return _tagged("tuple", self._list(value))
        if kind is datetime:
            return _tagged("datetime", _instant(value))
        if kind in _TEXTS:
            return _tagged(kind.__name__, _TEXTS[kind][0](value))
        raise DeclarationError(
            f"state, value={value!r}: a lasting state holds None, bool, int, float, str, bytes, Decimal, date, datetime, "
            f"timedelta, and lists, tuples and dicts of these, not {kind.__name__}; keep it as one of them"
        )

    def _list(self, values: Iterable[Any]) -> list[Any]:
        return [self.plain(item) for item in values]

    def _dict(self, value: dict[Any, Any]) -> Any:
        if all(type(key) is str for key in value) and _KIND not in value:
            return {key: self.plain(item) for key, item in value.items()}
        return _tagged("dict", [[self.plain(key), self.plain(item)] for key, item in value.items()])


class _Reader:
    def __init__(self) -> None:
        self._seen: list[Any] = []

    def value(self, plain: Any) -> Any:
        if type(plain) is list:
            return self._list(plain)
        if type(plain) is not dict:
            return plain
        if _KIND not in plain:
            return self._dict(plain.items())
        kind, value = plain[_KIND], plain[_VALUE]
        if kind == "same":
            return self._seen[value]
        if kind == "tuple":
            return tuple(self.value(item) for item in value)
        if kind == "dict":
            return self._dict(value)
        return datetime.fromisoformat(value) if kind == "datetime" else _BY_NAME[kind](value)

    def _list(self, plain: Iterable[Any]) -> list[Any]:
        values: list[Any] = []
        self._seen.append(values)
        values.extend(self.value(item) for item in plain)
        return values

    def _dict(self, plain: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        entries: dict[Any, Any] = {}
        self._seen.append(entries)
        for key, item in plain:
            name = self.value(key)
            entries[name] = self.value(item)
        return entries


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {_KIND: kind, _VALUE: value}


def _instant(value: datetime) -> str:
    if value.utcoffset() != timedelta(0):
        raise DeclarationError(
            f"state, value={value!r}: an instant that is kept is aware and in UTC, as those of the rows; use astimezone(UTC)"
        )
    return value.astimezone(UTC).isoformat()
