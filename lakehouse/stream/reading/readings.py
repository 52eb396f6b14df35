"""Debezium's readings of a database's whole table. After a second one, tables that follow its log may have rows too many.

A row that was deleted while nobody followed the log is in no message, and a second reading does not show that either.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse.transform.observing import reading_names

Readings = Mapping[str, tuple[str, str]]
"""Topic -> the positions of the first and of the last reading."""


def merged(before: Readings, seen: Mapping[str, Any], topics: Iterable[str]) -> Readings:
    """Returns the readings that were known before, with those that were observed in a step (`observing.readings`)."""
    known = dict(before)
    for topic in topics:
        found = [seen[name] for name in reading_names(topic) if seen.get(name) is not None]
        if positions := [*known.get(topic, ()), *found]:
            known[topic] = min(positions), max(positions)
    return known


def remark(table: str, readings: Readings) -> str:
    """Returns the remark that a table's topics were read again, and what to do; empty if none was."""
    return "; ".join(
        f"table={table}, topic={topic}: {again(*readings[topic])}"
        for topic in sorted(readings)
        if readings[topic][0] != readings[topic][1]
    )


def again(first: str, last: str) -> str:
    """Returns the remark that the table of a topic was read at both positions; empty if that was one reading."""
    if first == last:
        return ""
    return (
        f"Debezium has read the database's table again (first at {_shown(first)}, later at {_shown(last)}); unless the connector "
        "had kept its place in the log, rows that were deleted in between stay in the tables that follow this one, and changed "
        "ones are old; have the connector send to a new topic (another topic.prefix), and declare an ingest table of another name"
    )


def _shown(position: str) -> str:
    return "/".join(part.lstrip("0") or "0" for part in position.split("/")[1:])
