"""Patterns over the rows of a key: steps that follow each other within a time, once or repeatedly.

    SMALL_THEN_LARGE = Pattern(
        begin("small", lambda row: row["amount"] <= 1),
        followed_by("large", lambda row: row["amount"] >= 500),
        within=timedelta(minutes=1),
        output="from_account STRING, event_time TIMESTAMP, small_id STRING, large_id STRING",
        select=lambda small, large: {"from_account": small["from_account"], "small_id": small["id"], "large_id": large["id"]},
    )

    @row_table(layer="gold", context=around(before=SMALL_THEN_LARGE.reach))
    def small_then_large(transfers: DataFrame) -> DataFrame:
        return process(
            transfers, by=["from_account"], function=SMALL_THEN_LARGE, within=SMALL_THEN_LARGE.reach, at="event_time"
        )

A pattern is a process function (`lakehouse.transform.functions.process`): the same as a stream and in batch.
"""

import inspect
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Literal, TypedDict, get_args

from lakehouse.errors import DeclarationError
from lakehouse.ranges import floor
from lakehouse.transform.functions.automaton import Automaton, Partial, order
from lakehouse.transform.functions.pattern_steps import (
    Condition,
    Step,
    begin,
    check,
    directly_followed_by,
    followed_by,
    not_followed_by,
)
from lakehouse.transform.functions.process import KeyedProcess, Row, State, Timers

__all__ = [
    "AfterMatch",
    "Pattern",
    "begin",
    "directly_followed_by",
    "followed_by",
    "not_followed_by",
]
AfterMatch = Literal["no_skip", "skip_to_next", "skip_past_last"]


class _Beginning(TypedDict):
    """The matches that one row began, in the state of its key."""

    number: int  # of that row, among those of the key
    since: datetime
    partials: list[Partial]
    matched: bool


class Pattern(KeyedProcess):
    """Steps that follow each other `within` a time after the first row.

    A match has the event time of the row that makes it certain: its last row or, if a greedy repetition
    comes last, the row that ends it. If only time makes it certain, the event time is the end of `within`.

    :param steps: `begin(...)`, then others.
    :param within: from the first row of a match to its last, both ends included.
    :param output: the columns of the rows, Spark DDL, the event time among them.
    :param select: makes a row of `output` from a match. The parameters are the names of the steps. A step that repeats
        is a tuple of rows; any other is a row, or None if it is optional and did not come.
    :param at: the event time of the rows.
    :param timed_out: makes a row, as `select` does, for a first row without a match when its time is over: from its
        longest partial match that was still to go on, at that instant.
    :param after_match: the matches that may overlap a match. "no_skip": all. "skip_to_next": none with the same
        first row. "skip_past_last": none that begins before its end.
    :param skip_span: with "skip_past_last", a match skips only matches in the same span of this length, counted from
        1970 in UTC, so that a match does not depend on an unlimited past.
    :raises DeclarationError: if the steps make no pattern, or `select` does not take them.
    """

    def __init__(
        self,
        *steps: Step,
        within: timedelta,
        output: str,
        select: Callable[..., Row],
        at: str = "event_time",
        timed_out: Callable[..., Row] | None = None,
        after_match: AfterMatch = "no_skip",
        skip_span: timedelta | None = None,
    ) -> None:
        check(steps)
        self._automaton = Automaton(steps)
        self.within, self.output, self.select, self.at = within, output, select, at
        self.timed_out, self.after_match, self.skip_span = timed_out, after_match, skip_span
        self._check()

    @property
    def reach(self) -> timedelta:
        """The time before an output in which rows decide it: `within`, and `skip_span` if there is one."""
        return self.within + (self.skip_span or timedelta(0))

    def check(self, within: timedelta, at: str) -> None:
        if within < self.reach:
            raise DeclarationError(
                f"within={within}: the pattern needs the rows of {self.reach} before; pass within=PATTERN.reach to process()"
            )
        if at != self.at:
            raise DeclarationError(
                f"at={at!r}: the pattern has at={self.at!r}, and both are the event time of the rows; pass the same to both"
            )

    def on_row(self, state: State, row: Row, timers: Timers) -> Iterator[Row]:
        """Extends the matches that have begun, and begins new ones."""
        at = row[self.at]
        number = state["rows"] = state.get("rows", 0) + 1
        beginnings = [b for b in state.get("begun", []) if at - b["since"] <= self.within]
        outcomes: dict[Condition, bool] = {}
        for b in beginnings:
            b["partials"], complete = self._automaton.after(b["partials"], row, number, outcomes)
            yield from self._matches(state, b, complete, at)
        partials, complete = self._automaton.begun(row, number)
        if partials or complete:
            beginnings.append(_Beginning(number=number, since=at, partials=partials, matched=False))
            yield from self._matches(state, beginnings[-1], complete, at)
            if partials and (self.timed_out or self._automaton.waits_for_time):
                timers.set(at + self.within)
        state["begun"] = [b for b in beginnings if self._goes_on(state, b)]

    def on_timer(self, state: State, at: datetime, timers: Timers) -> Iterator[Row]:
        """Ends the matches that began `within` before: no row can complete or forbid them any more."""
        beginnings = state.get("begun", [])
        over = [b for b in beginnings if at - b["since"] >= self.within]
        state["begun"] = [b for b in beginnings if at - b["since"] < self.within]
        for b in over:
            yield from self._matches(state, b, self._automaton.at_the_end(b["partials"]), at)
            if self.timed_out and not b["matched"] and not self._is_skipped(state, b, at):
                longest = min(b["partials"], key=lambda p: (-order(p)[0], *order(p)[1:]))
                yield self.timed_out(**self._automaton.rows(longest))

    def _matches(
        self, state: State, beginning: _Beginning, complete: list[Partial], at: datetime
    ) -> Iterator[Row]:
        for partial in complete:
            if self.after_match == "skip_to_next" and beginning["matched"]:
                return
            beginning["matched"] = True
            if self._is_skipped(state, beginning, at):
                continue
            if self.skip_span:
                state["skipped"] = floor(at, self.skip_span), partial["last"]
            yield self.select(**self._automaton.rows(partial))

    def _is_skipped(self, state: State, beginning: _Beginning, at: datetime) -> bool:
        """Returns True if it began before the end of a match of the same span."""
        if not self.skip_span or "skipped" not in state:
            return False
        span, last = state["skipped"]
        return beginning["number"] <= last and span == floor(at, self.skip_span)

    def _goes_on(self, state: State, beginning: _Beginning) -> bool:
        if not beginning["partials"] or (
            self.after_match == "skip_to_next" and beginning["matched"]
        ):
            return False
        if not self.skip_span or "skipped" not in state:
            return True
        # matches that are skipped anyway need not be kept
        return not self._is_skipped(state, beginning, beginning["since"] + self.within)

    def _check(self) -> None:
        if self.within <= timedelta(0):
            raise DeclarationError(
                f"within={self.within}: the time of a match is longer than zero; give more"
            )
        if self.after_match not in get_args(AfterMatch):
            raise DeclarationError(
                f"after_match={self.after_match!r}: it is one of {', '.join(get_args(AfterMatch))}; choose one"
            )
        if (self.after_match == "skip_past_last") != (self.skip_span is not None):
            raise DeclarationError(
                f"after_match={self.after_match!r}, skip_span={self.skip_span}: skip_past_last, and it alone, has a skip_span, "
                "for each skipped match may depend on the one before, without end; give for example "
                "skip_span=timedelta(hours=1), or leave it out"
            )
        if self.skip_span is not None and self.skip_span <= timedelta(0):
            raise DeclarationError(
                f"skip_span={self.skip_span}: a span is longer than zero; give more"
            )
        names = [step.name for step in self._automaton.steps]
        for role, function in {"select": self.select, "timed_out": self.timed_out}.items():
            if function is None:
                continue
            try:
                inspect.signature(function).bind(**dict.fromkeys(names))
            except TypeError as err:
                raise DeclarationError(
                    f"{role}={function}: {err}; its parameters are the names of the steps ({', '.join(names)})"
                ) from err
