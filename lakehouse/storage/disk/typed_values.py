"""Values of dataclasses, made of the JSON of a file: a field of another type is an error at once, not found out later."""

import reprlib
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Value = TypeVar("Value")
_WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    datetime: "instant",
    type(None): "null",
}


def typed(kind: type[Value], values: object, *, later: bool = False) -> Value:
    """Returns a value of the dataclass. Raises TypeError with the field, the rule and what is there.

    Where the field has that type, a list becomes a tuple, a text in ISO 8601 an instant, and an object a dataclass.

    :param later: leaves out unknown fields, of a later version of the lakehouse that may run beside this one.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{values!r} is no JSON object")
    hints, needed = _fields(cast(Hashable, kind))
    made = {
        name: checked(hints[name], value, name, later=later)
        for name, value in values.items()
        if name in hints
    }
    if not later and (unknown := values.keys() - hints.keys()):
        raise TypeError(f"{min(unknown)} is no field of it")
    if missing := needed - values.keys():
        raise TypeError(f"{min(missing)} is not there")
    return kind(**made)


def checked(hint: Any, value: Any, name: str = "value", *, later: bool = False) -> Any:
    """Returns the value as one of the type. Raises TypeError with its name and the rule."""
    try:
        return _made(hint, value, later)
    except (TypeError, ValueError) as err:
        if isinstance(err, TypeError) and err.args:  # from a nested dataclass: names its field
            raise TypeError(f"{name}.{err}") from None
        raise TypeError(f"{name}={reprlib.repr(value)} is no {_words(hint)}") from None


def _words(hint: Any) -> str:
    """Returns the type in words of JSON."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return " or ".join(map(_words, inner))
    if kind is Literal:
        return " or ".join(map(repr, inner))
    if kind is not None:
        parts = [_words(part) for part in inner if part is not ...]
        return (
            f"object of {parts[-1]}" if issubclass(kind, Mapping) else f"list of {', '.join(parts)}"
        )
    return _WORDS.get(hint) or ("object" if is_dataclass(hint) else str(hint))


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    needed = (f.name for f in fields(kind) if f.default is f.default_factory is MISSING)
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}, frozenset(needed)


def _made(hint: Any, value: Any, later: bool) -> Any:
    """Returns the value as one of the type. Raises TypeError or ValueError if it is none."""
    kind, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if kind in (Union, UnionType):
        for choice in inner:
            with suppress(TypeError, ValueError):
                return _made(choice, value, later)
        raise TypeError
    if kind is Literal:
        return _one_of(value in inner, value)
    if kind is tuple:
        if not isinstance(value, tuple | list) or (inner[-1] != ... and len(value) != len(inner)):
            raise TypeError
        types = inner[:1] * len(value) if inner[-1] == ... else inner
        return tuple(_made(type_, part, later) for type_, part in zip(types, value, strict=True))
    if isinstance(kind, type) and issubclass(kind, Mapping):
        _one_of(isinstance(value, Mapping), value)
        of_key, of_value = inner
        return {_made(of_key, k, later): _made(of_value, v, later) for k, v in value.items()}
    if kind is not None:
        _one_of(isinstance(value, kind) and not isinstance(value, str | bytes), value)
        return [_made(inner[0], part, later) for part in value]
    if is_dataclass(hint) and isinstance(value, Mapping):
        return typed(cast(type, hint), value, later=later)
    return _plain(hint, value)


def _plain(hint: Any, value: Any) -> Any:
    if hint is datetime:  # with a zone, because it is compared with others
        instant = datetime.fromisoformat(value) if isinstance(value, str) else value
        return _one_of(isinstance(instant, datetime) and instant.tzinfo is not None, instant)
    if hint in (int, float):
        numbers = (int, float) if hint is float else int
        return _one_of(isinstance(value, numbers) and not isinstance(value, bool), value)
    return _one_of(isinstance(value, hint or type(None)), value)


def _one_of(is_one: bool, value: Any) -> Any:
    if not is_one:
        raise TypeError
    return value
