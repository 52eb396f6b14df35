"""Durations as people and Spark write them: "5 seconds", "1 hour"."""

import re
from datetime import timedelta

from lakehouse.errors import DeclarationError

_UNITS = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400}


def duration(text: str | timedelta, field: str = "duration") -> timedelta:
    """Returns the time span that `text` names. Raises DeclarationError for anything but `<number> <unit>`, not negative."""
    if isinstance(text, timedelta):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*", str(text))
    if match is None or match[2] not in _UNITS:
        raise DeclarationError(
            f"{field}={text!r}: a duration is a number and a unit ({', '.join(_UNITS)}); write for example '10 seconds'"
        )
    return timedelta(seconds=float(match[1]) * _UNITS[match[2]])


def spark_interval(span: timedelta) -> str:
    """Returns `span` in the form that Spark's window() and interval literals read."""
    return f"{span // timedelta(microseconds=1)} microseconds"
