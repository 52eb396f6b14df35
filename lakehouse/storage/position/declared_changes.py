"""A change of a declaration, its effect on the rows that are there, and the lines of code that differ."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import unified_diff
from itertools import zip_longest

_BOTH = "rows of both would stand in one table"
_CODE = "rows before and after the change would be computed by different code"
_MEANING = {  # the meaning of a change, by the first word of the name of what changed
    "layer": "the rows that are there would stay behind in that layer's folder",
    "kind": "another kind of table has another checkpoint",
    "topics": "an ingest table keeps the topics, the folder or the table that it began with, or the source of your own, and the "
    "history of a topic",
    "reader": "its positions may be those of other records",
    "history": "rows between the two instants would be there twice, or not at all",
    "schema": "rows before and after the change would be read differently from where they come from",
    "framing": "rows have a place in their message where it may be several",
    "input": "its positions are those of that table",
    "versioned": "rows before and after the change would be joined differently",
    "reads": "rows before and after the change would be joined with other tables",
    "event": "rows are in partitions by that time",
    "marker": "rows before and after the change would be late by different rows",
    "watermark_by": "rows before and after the change would be held to different watermarks",
    "delay": "rows before and after the change would be late by different delays",
    "window": "windows of both would stand in one table",
    "keys": _BOTH,
    "context": "rows before and after the change would be computed with different neighbours",
    "ttl": "rows before and after the change would be computed with what is remembered for another time",
    "final_rows": "a row would count from another instant on",
    "lookup": "rows before and after the change would be asked for differently",
    "duplicates": "duplicates of both would be left out of one table",
    "partitions": "partitions of both would overlap in one table",
    "query": _CODE,
    "function": _CODE,
    "constant": _CODE,
}
_SHOWN = 90  # characters of a line of code in a message


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between the declaration that a query began with and the present one."""

    field: str
    then: str
    now: str

    @property
    def what(self) -> str:
        return self.field.split()[0]

    @property
    def diff(self) -> list[str]:
        """Returns the lines that were removed and added, in their order; empty for a value of one line."""
        then, now = self.then.splitlines(), self.now.splitlines()
        if max(len(then), len(now)) < 2:
            return []
        lines = list(unified_diff(then, now, n=0, lineterm=""))[2:]
        return [f"{line[0]} {line[1:]}" for line in lines if not line.startswith("@@")]

    def __str__(self) -> str:
        meaning = _MEANING.get(self.what, _BOTH)
        if self.diff:
            return f"{self.field}: its checkpoint was made with other code, and {meaning}"
        then, now = _around_difference(self.then, self.now)
        return f"{self.field}={now or 'none'}: its checkpoint was made with {then or 'none'}, and {meaning}"


def diffs(changes: Iterable[Change]) -> list[str]:
    """Returns the lines that differ, below the name of what changed, for all changes of several lines."""
    return [
        line
        for change in changes
        if change.diff
        for line in (f"{change.field}:", *(f"  {line}" for line in change.diff))
    ]


def _around_difference(then: str, now: str) -> tuple[str, str]:
    """Returns both texts, or, of long ones, the part where they begin to differ."""
    if max(len(then), len(now)) <= _SHOWN:
        return then, now
    pairs = enumerate(zip_longest(then, now))
    first = next(place for place, (one, other) in pairs if one != other)
    begin = max(0, first - _SHOWN // 3)
    dots = "…" if begin else ""
    return dots + then[begin : begin + _SHOWN], dots + now[begin : begin + _SHOWN]
