"""What a pattern matches, by its definition: all ways to give rows to steps are tried, and each is held against the rules.

It knows nothing of automata. Rows are numbered from 0; a match is a list of (row, step).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakehouse.ranges import floor
from lakehouse.transform.functions.pattern_steps import Condition, Step

Match = list[tuple[int, int]]


@dataclass
class Oracle:
    steps: tuple[Step, ...]
    rows: list[dict]
    within: timedelta
    at: str = "event_time"

    def __post_init__(self) -> None:
        self.positive = [s for s in self.steps if s.kind != "not_followed_by"]
        self.names = [s.name for s in self.positive]
        # between which positive steps nothing like it may come: it stands before this one
        self.absent: dict[int, Condition] = {}
        for n, step in enumerate(self.steps):
            if step.kind == "not_followed_by":
                before = [s for s in self.steps[:n] if s.kind != "not_followed_by"]
                self.absent[len(before)] = step.condition

    # --- conditions ---------------------------------------------------------------------------------

    def shown(self, match: Match) -> dict:
        found = {}
        for s, step in enumerate(self.positive):
            of_step = tuple(self.rows[r] for r, t in match if t == s)
            found[step.name] = of_step if step.most != 1 else next(iter(of_step), None)
        return found

    def holds(self, condition: Condition, r: int, match: Match) -> bool:
        known = self.shown(match)
        return bool(
            condition.holds(self.rows[r], **{name: known[name] for name in condition.steps})
        )

    # --- rules --------------------------------------------------------------------------------------

    def may_come(self, match: Match, step: int) -> bool:
        """Whether by their numbers a row of the step (or the end) may be next."""
        last = match[-1][1] if match else -1
        count = sum(s == last for _, s in match)
        if step == last:
            return self.positive[last].most is None or count < self.positive[last].most
        enough = last == -1 or count >= self.positive[last].least
        return step > last and enough and all(s.is_optional for s in self.positive[last + 1 : step])

    def is_open(self, match: Match, step: int, r: int, *, taking: bool) -> bool:
        """Whether a step (or the end) is still waited for at row r, having taken none of the rows since the match's last.

        `taking`: r is the row that it takes; else r is passed over like those before.
        """
        last = match[-1][1] if match else -1
        since = match[-1][0] + 1 if match else r
        span = range(since, r + 1)
        passed = range(since, r if taking else r + 1)
        for between in range(last + 1, step + 1):
            if between in self.absent and any(
                self.holds(self.absent[between], x, match) for x in span
            ):
                return False
        if any(self.would_take(match, g, x) for g in range(max(last, 0), step) for x in span):
            return False
        if step == len(self.positive):
            return True
        one = self.positive[step]
        if one.stop and any(self.holds(one.stop, x, match) for x in span):
            return False
        strict = one.is_consecutive if step == last else one.kind == "directly_followed_by"
        if strict and match and len(passed):
            return False
        return not any(self.holds(one.condition, x, match) for x in passed)

    def would_take(self, match: Match, g: int, x: int) -> bool:
        """Whether row x belongs to the greedy step g, so that no later one may pass it over or take it."""
        return (
            self.positive[g].is_greedy
            and self.may_come(match, g)
            and self.is_open(match, g, x, taking=True)
            and self.holds(self.positive[g].condition, x, match)
        )

    # --- all matches --------------------------------------------------------------------------------

    def assignments(self) -> Iterator[Match]:
        """Every way to give some rows, in their order, to steps, in their order, that each step's condition and number allow."""

        def longer(match: Match) -> Iterator[Match]:
            if match:
                yield match
            first = match[-1][0] + 1 if match else 0
            for r in range(first, len(self.rows)):
                if match and self.instant(r) - self.instant(match[0][0]) > self.within:
                    break
                for s in range(len(self.positive)):
                    if (
                        self.may_come(match, s)
                        and self.holds(self.positive[s].condition, r, match)
                        and self.is_open(match, s, r, taking=True)
                    ):
                        yield from longer([*match, (r, s)])

        yield from longer([])

    def instant(self, r: int) -> datetime:
        return self.rows[r][self.at]

    def deadline(self, match: Match) -> tuple[datetime, int]:
        """When the time of the match is over, and the last row that it sees."""
        end = self.instant(match[0][0]) + self.within
        return end, max(r for r in range(len(self.rows)) if self.instant(r) <= end)

    def certain(self, match: Match) -> tuple[datetime, int, bool] | None:
        """When it is a match: instant, row, and whether only time says so. None if it is none."""
        end = len(self.positive)
        if not self.may_come(match, end):
            return None
        over, last = self.deadline(match)
        for r in range(match[-1][0], last + 1):
            if r > match[-1][0] and not self.is_open(match, end, r, taking=False):
                return None
            greedy = [
                s for s in range(end) if self.positive[s].is_greedy and self.may_come(match, s)
            ]
            waits = any(self.waits(match, s, r) for s in greedy)
            if end not in self.absent and not waits:
                return self.instant(r), r, False
        return over, last, True

    def waits(self, match: Match, step: int, r: int) -> bool:
        """Whether after row r a row of the step may come."""
        return r == match[-1][0] or self.is_open(match, step, r, taking=False)

    def order(self, match: Match) -> tuple:
        counts = [-sum(s == n for _, s in match) for n in range(len(self.positive))]
        return (match[0][0], len(match), *counts)

    def results(self, after_match: str, skip_span: timedelta | None) -> tuple[list, list]:
        """Matches and time-outs as (instant, rows by step), skipping as declared."""
        found = [(self.certain(match), match) for match in self.assignments()]
        matches = sorted(
            ((when, match) for when, match in found if when is not None),
            key=lambda each: (self.moment(each[0]), self.order(each[1])),
        )
        given, skipped, first = [], [], set()
        for when, match in matches:
            begun = match[0][0]
            if after_match == "skip_to_next" and begun in first:
                continue
            first.add(begun)
            if skip_span and self.is_skipped(skipped, begun, when[0], skip_span):
                continue
            skipped.append(((self.moment(when), begun), match[-1][0]))
            given.append((when[0], self.shown(match)))
        return given, list(self.time_outs(first, found, skipped, skip_span))

    @staticmethod
    def moment(when: tuple[datetime, int, bool]) -> tuple:
        """What time decides comes after the rows of its instant, and before the next one."""
        at, row, by_time = when
        return row, by_time, at

    @staticmethod
    def is_skipped(ended: list, begun: int, at: datetime, span: timedelta) -> bool:
        return any(
            begun <= last and floor(moment[-1], span) == floor(at, span)
            for (moment, _), last in ended
        )

    def time_outs(self, first: set, found: list, skipped: list, span: timedelta | None):
        for begun in sorted({match[0][0] for _, match in found} - first):
            over, last = self.deadline([(begun, 0)])
            alive = [
                match
                for _, match in found
                if match[0][0] == begun
                and any(
                    self.may_come(match, s) and self.waits(match, s, last)
                    for s in range(len(self.positive))
                )
            ]
            now = (self.moment((over, last, True)), begun)
            before = [each for each in skipped if each[0] < now]
            if alive and not (span and self.is_skipped(before, begun, over, span)):
                longest = min(alive, key=lambda m: (-len(m), *self.order(m)[2:]))
                yield over, self.shown(longest)
