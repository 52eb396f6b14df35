"""Patterns over the rows of a key: one row, then another within a time, with none of a kind between or after.

    SMALL_THEN_LARGE = Pattern(
        begin("small", lambda row: row["amount"] <= 1),
        followed_by("large", lambda row: row["amount"] >= 500),
        within=timedelta(minutes=1),
        output="from_account STRING, event_time TIMESTAMP, small_id STRING, large_id STRING",
        select=lambda small, large: {"from_account": small["from_account"], "small_id": small["id"], "large_id": large["id"]},
    )

    @table(layer="gold", context=around(before="1 minute"))
    def small_then_large(transfers: DataFrame) -> DataFrame:
        return process(transfers, by=["from_account"], function=SMALL_THEN_LARGE, within=SMALL_THEN_LARGE.within, at="event_time")

A pattern is a process function (`lakehouse.transform.process`): the same as a stream and in batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Literal

from lakehouse.errors import DeclarationError
from lakehouse.transform.process import KeyedProcess, Row, State, Timers

Condition = Callable[[Row], bool]


@dataclass(frozen=True, slots=True)
class Step:
    """A row that is to come, or (`not_followed_by`) not to come before the next step."""

    kind: Literal["begin", "followed_by", "directly_followed_by", "not_followed_by"]
    name: str
    holds: Condition


def begin(name: str, holds: Condition) -> Step:
    """The row with which a match begins; each such row begins one of its own."""
    return Step("begin", name, holds)


def followed_by(name: str, holds: Condition) -> Step:
    """Followed by: the next row for which it holds, whatever is between."""
    return Step("followed_by", name, holds)


def directly_followed_by(name: str, holds: Condition) -> Step:
    """Followed at once: the very next row of the key.

    If it does not hold of that, there is no match.
    """
    return Step("directly_followed_by", name, holds)


def not_followed_by(holds: Condition) -> Step:
    """Not followed by: no such row before the next step or, as the last step, until the pattern's time is over."""
    return Step("not_followed_by", "", holds)


class Pattern(KeyedProcess):
    """Steps that follow each other `within` a time after the first.

    `select` makes a row of `output` from the rows by name.

    `at`: the event time of the rows. A match has that of its last row; one that ends with `not_followed_by`,
    the end of its time, when it is certain. Raises DeclarationError.
    """

    def __init__(
        self,
        *steps: Step,
        within: timedelta,
        output: str,
        select: Callable[..., Row],
        at: str = "event_time",
    ) -> None:
        kinds = [step.kind for step in steps]
        if not kinds or kinds[0] != "begin" or "begin" in kinds[1:] or len(steps) < 2:
            raise DeclarationError(
                f"pattern={kinds}: it begins with begin(...), once, and has a step that follows; add or move"
            )
        if any(
            before == "not_followed_by" and after != "followed_by"
            for before, after in pairwise(kinds)
        ):
            raise DeclarationError(
                f"pattern={kinds}: after not_followed_by(...) comes followed_by(...), or nothing; say both conditions in one"
            )
        self.steps, self.within, self.output, self.select, self.at = (
            steps,
            within,
            output,
            select,
            at,
        )

    def on_row(self, state: State, row: Row, timers: Timers) -> Iterator[Row]:
        """Takes each match that is under way further, and begins one."""
        at, going = row[self.at], []
        for match in state.get("matches", []):
            if at - match["from"] <= self.within and (taken := self._taken(match, row)) is not None:
                going.append(taken)
        if self.steps[0].holds(row):
            going.append({"from": at, "step": 1, "rows": {self.steps[0].name: row}})
            if self.steps[-1].kind == "not_followed_by":
                timers.set(at + self.within)
        yield from (
            self.select(**match["rows"]) for match in going if match["step"] == len(self.steps)
        )
        state["matches"] = [match for match in going if match["step"] < len(self.steps)]

    def on_timer(self, state: State, at: datetime, timers: Timers) -> Iterator[Row]:
        """Ends what began `within` before: all that was to come came, and what was not to come did not."""
        matches = state.get("matches", [])
        over = [match for match in matches if at - match["from"] >= self.within]
        yield from (
            self.select(**match["rows"]) for match in over if match["step"] == len(self.steps) - 1
        )
        state["matches"] = [match for match in matches if match not in over]

    def _taken(self, match: Row, row: Row) -> Row | None:
        """The match after that row; None if there can be none any more."""
        n = match["step"]
        if self.steps[n].kind == "not_followed_by":
            if self.steps[n].holds(row):
                return None
            n += 1
        if n < len(self.steps) and self.steps[n].holds(row):
            return match | {"step": n + 1, "rows": match["rows"] | {self.steps[n].name: row}}
        return (
            None if n < len(self.steps) and self.steps[n].kind == "directly_followed_by" else match
        )
