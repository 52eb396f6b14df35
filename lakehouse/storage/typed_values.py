"""Values of dataclasses made of what a file held: a field of another type is an error, and not found out later."""

from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Value = TypeVar("Value")


def typed(kind: type[Value], values: object) -> Value:
    """A value of the dataclass. Raises TypeError with the field, the rule and what is there."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{values!r} is no JSON object")
    hints, needed = _fields(cast(Hashable, kind))
    for name, value in values.items():
        if name in hints and not _is(value, hints[name]):
            wanted = getattr(hints[name], "__name__", str(hints[name]))
            raise TypeError(f"{name}={value!r} is no {wanted}")
    if unknown := values.keys() - hints.keys():
        raise TypeError(f"{min(unknown)} is no field of it")
    if missing := needed - values.keys():
        raise TypeError(f"{min(missing)} is not there")
    return kind(**values)


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    needed = (f.name for f in fields(kind) if f.default is f.default_factory is MISSING)
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}, frozenset(needed)


def _is(value: object, hint: Any) -> bool:
    kind, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if kind in (Union, UnionType):
        return any(_is(value, each) for each in inner)
    if kind is Literal:
        return value in inner
    if kind is tuple:
        if not isinstance(value, tuple):
            return False
        if inner[-1:] == (...,):
            return all(_is(each, inner[0]) for each in value)
        return len(value) == len(inner) and all(map(_is, value, inner))
    if isinstance(kind, type) and issubclass(kind, Mapping):
        keys, values = inner
        return isinstance(value, Mapping) and all(
            _is(key, keys) and _is(each, values) for key, each in value.items()
        )
    if kind is not None:
        return isinstance(value, kind) and all(_is(each, inner[0]) for each in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is datetime:  # which is compared with others
        return isinstance(value, datetime) and value.tzinfo is not None
    return isinstance(value, hint or type(None))
