"""The automaton of a pattern: which rows make a match. Pure: it knows neither Spark nor time.

A partial match holds the rows that its steps have taken, and the steps that may take the next one.
Each row is offered to each of these, in the order of the steps. A step that takes it makes a longer
partial match, and is done with in the shorter one, which goes on with the steps that are left: so
one beginning may give several matches, each once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lakehouse.transform.pattern_steps import Condition, Step
from lakehouse.transform.process import Row


@dataclass(frozen=True, slots=True)
class Partial:
    """A match that is under way."""

    taken: tuple[tuple[Row, ...], ...]  # the rows of each step
    step: int  # the last one that took a row, -1 before the first
    last: int  # the number of that row
    waits: tuple[int, ...]  # the steps that may take the next row; behind the last one, the end

    @property
    def order(self) -> tuple[int, ...]:
        """Of matches with one beginning and one end: fewer rows first, then more rows of earlier steps."""
        counts = [len(rows) for rows in self.taken]
        return sum(counts), *(-count for count in counts)


class Automaton:
    """What rows of a key, in their order, make of partial matches."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = [step for step in steps if step.kind != "not_followed_by"]
        self._index = {step.name: n for n, step in enumerate(self.steps)}
        self._end = len(self.steps)
        # what must not come before the step, or before the end
        self._absent: dict[int, Condition] = {}
        for n, step in enumerate(steps):
            if step.kind == "not_followed_by":
                self._absent[n - len(self._absent)] = step.condition
        self._start = Partial(((),) * self._end, -1, 0, tuple(self._from(0)))

    @property
    def waits_for_time(self) -> bool:
        """Whether a match may be certain only when the pattern's time is over."""
        ends = (n for n, step in enumerate(self.steps) if self._end in self._from(n + 1))
        return self._end in self._absent or any(self.steps[n].is_greedy for n in ends)

    def begun(self, row: Row, number: int) -> tuple[list[Partial], list[Partial]]:
        """The partial matches that begin with a row, and the matches."""
        going, complete = self.after([self._start], row, number)
        return [each for each in going if each.step >= 0], complete

    def after(
        self, partials: Sequence[Partial], row: Row, number: int
    ) -> tuple[list[Partial], list[Partial]]:
        """What becomes of partial matches by the next row: those that go on, and those that are matches."""
        going, complete = [], []
        known: dict[Condition, bool] = {}
        for partial in partials:
            for each in self._successors(partial, row, number, known):
                if self._is_certain(each):
                    complete.append(each)
                    each = replace(each, waits=each.waits[:-1])
                if each.waits:
                    going.append(each)
        return going, sorted(complete, key=lambda each: each.order)

    def at_the_end(self, partials: Sequence[Partial]) -> list[Partial]:
        """Which of them are matches when no row comes any more."""
        complete = [each for each in partials if self._end in each.waits]
        return sorted(complete, key=lambda each: each.order)

    def rows(self, partial: Partial) -> dict[str, Row | tuple[Row, ...] | None]:
        """The rows by the name of their step."""
        return {step.name: self._rows(partial, n) for n, step in enumerate(self.steps)}

    def _rows(self, partial: Partial, n: int) -> Row | tuple[Row, ...] | None:
        rows = partial.taken[n]
        if self.steps[n].repeats:
            return rows
        return rows[0] if rows else None

    def _successors(
        self, partial: Partial, row: Row, number: int, known: dict[Condition, bool]
    ) -> Iterator[Partial]:
        """The partial matches that take the row, and the one that passes over it, if there is something left to wait for."""
        left: list[int] = []

        def holds(condition: Condition | None) -> bool:
            if condition is None or condition.steps:
                return condition is not None and self._holds(condition, partial, row)
            if condition not in known:
                known[condition] = bool(condition.holds(row))
            return known[condition]

        for n in partial.waits:
            if any(holds(self._absent.get(m)) for m in range(partial.step + 1, n + 1)):
                continue
            if n == self._end:
                left.append(n)
            elif holds(self.steps[n].stop):
                continue
            elif holds(self.steps[n].condition):
                yield self._with(partial, n, row, number)
                if self.steps[n].is_greedy:
                    break
            elif not self._is_strict(partial, n):
                left.append(n)
        yield partial if len(left) == len(partial.waits) else replace(partial, waits=tuple(left))

    def _holds(self, condition: Condition, partial: Partial, row: Row) -> bool:
        rows = {name: self._rows(partial, self._index[name]) for name in condition.steps}
        return bool(condition.holds(row, **rows))

    def _with(self, partial: Partial, n: int, row: Row, number: int) -> Partial:
        rows, step = (*partial.taken[n], row), self.steps[n]
        again = [n] if step.most is None or len(rows) < step.most else []
        later = self._from(n + 1) if len(rows) >= step.least else ()
        taken = (*partial.taken[:n], rows, *partial.taken[n + 1 :])
        return Partial(taken, n, number, (*again, *later))

    def _from(self, n: int) -> Iterator[int]:
        """The step, and those that may come instead, because all before them are optional."""
        for m in range(n, self._end + 1):
            yield m
            if m < self._end and not self.steps[m].is_optional:
                return

    def _is_strict(self, partial: Partial, n: int) -> bool:
        step = self.steps[n]
        return step.is_consecutive if n == partial.step else step.kind == "directly_followed_by"

    def _is_certain(self, partial: Partial) -> bool:
        """Whether it is a match whatever comes."""
        return (
            self._end in partial.waits
            and self._end not in self._absent
            and not any(self.steps[n].is_greedy for n in partial.waits[:-1])
        )
